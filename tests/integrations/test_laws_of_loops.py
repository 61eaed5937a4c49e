"""The laws of the Trainer in every loop: to the bit, as the Trainer itself trains."""

from functools import cache, partial

import attrs
import pytest
import torch
from torch.nn.functional import cross_entropy

from composable import Event
from composable.algorithms import (
    EMA,
    GradientClipping,
    LabelSmoothing,
    LayerFreezing,
    LowPrecisionLayerNorm,
    MixUp,
    SelectiveBackprop,
)
from composable.core.algorithm import FunctionAlgorithm
from tests.integrations.loops import BY_HAND, DTYPES, FULL, LOOPS, Run, own_loop, row, trained
from tests.integrations.table import EARLY, SETS, SGD, SIX, WITHIN, dense_net, refused_in, works_in
from tests.support.algorithm_cases import ALGORITHMS
from tests.support.algorithms import six_algorithms
from tests.support.campaign import drawn, each_once
from tests.support.data import noisy_loader, shuffling_loader
from tests.support.models import same

CLIP = GradientClipping("norm", 0.05)
ON_GRADIENTS = [CLIP, EMA("2ba")]
ON_BATCHES = [MixUp(), LabelSmoothing(), SelectiveBackprop(0.0, 1.0)]
ALL = [*ON_BATCHES, LowPrecisionLayerNorm(), *ON_GRADIENTS]
FUSED = partial(torch.optim.AdamW, lr=0.01, fused=True)  # SGD's momentum bears no first skip
OVERFLOWS = 2.0**19
"""A loss scale at which the first steps overflow in float16."""

every_loop = pytest.mark.parametrize("loop", LOOPS)
full_loops = pytest.mark.parametrize("loop", FULL)


def is_keyed(loop):
    return loop.startswith("HF")


@cache
def expected(run):
    """Return the result of the Trainer, and its outputs in evaluations."""
    run = attrs.evolve(run, seen=[])
    return run.by_trainer(), run.seen


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a function that trains a run once, and returns its folder and what it leaves."""

    @cache
    def train(loop, run):
        folder = tmp_path_factory.mktemp("checkpoints")
        return folder, LOOPS[loop](run, folder)

    return train


# --- algorithms ---

CHANGES = {"": {}, "AdamW": {"optimizer": partial(torch.optim.AdamW)}}
DRAWN = {"own loop": 99, "Fabric": 12, "Accelerate": 12}
ROWS = [
    *(
        (loop, name, "")
        for loop in LOOPS
        for name in drawn(works_in(loop), DRAWN.get(loop, 20 if "mixin" in loop else 10))
    ),
    *((loop, SIX, "AdamW") for loop in FULL if "mixin" in loop),
    *((loop, WITHIN, "") for loop in FULL if "mixin" in loop or loop == "own loop"),
    *((loop, EARLY, "") for loop in LOOPS if loop == "Lightning, callback"),
]


@pytest.mark.parametrize(("loop", "name", "change"), ROWS)
def test_algorithms_train_and_evaluate_as_in_the_trainer(loop, name, change, saved):
    run = row(name, keyed=is_keyed(loop), **CHANGES[change])
    t = saved(loop, run)[1] if loop == "own loop" else LOOPS[loop](run)

    result, outputs = expected(run)
    assert same(trained(t), result)
    assert torch.equal(run.seen[-1], *outputs)


SAME = {case.name for case in ALGORITHMS if case.no_effect}


@pytest.mark.parametrize(
    ("name", "keyed"),
    [*((name, False) for name in [*works_in("own loop"), WITHIN, EARLY] if name not in SAME)]
    + [(name, True) for name in SETS if "HF, mixin" in LOOPS and name not in SAME],
)
def test_every_row_changes_the_result(name, keyed):
    run = row(name, keyed=keyed)
    ours, plain = (
        [*result, *outputs]
        for result, outputs in map(expected, (run, attrs.evolve(run, algorithms=())))
    )

    layouts = [[one.stride() for one in some] for some in (ours, plain)]
    assert layouts[0] != layouts[1] or not same(ours, plain)


ASKS = r"requests a .*, which an external loop does not support"
REFUSALS = {
    "Lightning, callback": rf"acts at \w+, and this loop made a step without t\.|{ASKS}",
    "HF, mixin": f"none of the model's parameters|{ASKS}",
    "HF, callback": r"acts at \w+, and this loop made an? \w+ without t\.|"
    rf"none of the model's parameters|{ASKS}",
}


@pytest.mark.parametrize(
    ("loop", "name"), [(loop, name) for loop in LOOPS for name in refused_in(loop)]
)
def test_refused_algorithms_raise(loop, name):
    loss = {} if is_keyed(loop) else {"loss_fn": lambda outputs, _: outputs.mean()}

    with pytest.raises((RuntimeError, ValueError), match=REFUSALS.get(loop, ASKS)):
        LOOPS[loop](row(name, keyed=is_keyed(loop), **loss))


SEEDED = [loop for loop in LOOPS if loop in BY_HAND or loop.startswith("Lightning")]


@pytest.mark.parametrize("loop", SEEDED)
@pytest.mark.parametrize("build", [shuffling_loader, noisy_loader])
def test_loaders_draw_as_in_the_trainer(loop, build):
    run = Run(ON_GRADIENTS, dense_net, batches=partial(build, images=True))

    assert same(trained(LOOPS[loop](run)), run.by_trainer())


# --- several batches for each step ---

PER_STEP = [*ON_GRADIENTS, LabelSmoothing(), LayerFreezing(0.25, 0.5)]


ACCUMULATED = [
    (FULL, Run(PER_STEP, accumulate_batches=2)),
    (FULL, Run(six_algorithms(), accumulate_batches=2)),
    # Without dropout, which no callback can seed.
    (LOOPS, Run(ON_GRADIENTS, dense_net, accumulate_batches=2)),
]


@pytest.mark.parametrize(
    ("loop", "run"), [(loop, run) for some, run in ACCUMULATED for loop in some]
)
def test_accumulated_steps_are_those_of_the_trainer(loop, run):
    assert same(trained(LOOPS[loop](run)), expected(run)[0])


@pytest.mark.parametrize(
    ("loop", "sizes"), each_once(list(FULL), [(20, 2), (18, 2), (6, 2), (10, 4), (18, 3)])
)
def test_short_last_steps_and_batches_match_the_trainer(loop, sizes):
    count, number = sizes
    # Without clipping by norm, which would hide gradients of another scale.
    run = Run([EMA("2ba")], dense_net, examples=count, accumulate_batches=number)
    t = LOOPS[loop](run)

    torch.testing.assert_close(trained(t), run.by_trainer())
    assert t.state.timestamp.sample == 2 * count


# --- precision ---


# Of the Trainer, property_tests/test_precision.py says that it trains as a loop by hand does.
@every_loop
@pytest.mark.parametrize(
    ("precision", "scale", "accumulate_batches", "optimizer"),
    [
        ("bf16", 1, 2, SGD),
        *(("fp16", scale, 1, made) for scale in (4.0, OVERFLOWS) for made in (SGD, FUSED)),
        ("fp16", OVERFLOWS, 2, SGD),
    ],
)
def test_precisions_and_fused_optimizers_match_the_trainer(
    loop, precision, scale, accumulate_batches, optimizer
):
    run = Run(
        ALL if loop in FULL else ON_GRADIENTS,
        dense_net,
        precision=precision,
        scale=scale,
        accumulate_batches=accumulate_batches,
        optimizer=optimizer,
    )
    t = LOOPS[loop](run)

    # Otherwise gradients are rescaled after the batch, and overflow at another scale.
    assert same(trained(t), run.by_trainer(loss_mean_over="examples"))
    assert {average.dtype for average in t.state.averages["EMA"].values()} == {torch.float32}


OPTIMIZER_EVENTS = (
    Event.BEFORE_OPTIMIZER_STEP,
    Event.AFTER_OPTIMIZER_STEP,
    Event.BEFORE_ZERO_GRAD,
    Event.AFTER_ZERO_GRAD,
)


@attrs.frozen(repr=False)
class OnSteps(FunctionAlgorithm):
    """A function of the events that every loop fires."""

    events = frozenset({*OPTIMIZER_EVENTS, Event.BATCH_END})


@every_loop
@pytest.mark.parametrize(("accumulate_batches", "changes"), [(1, {"optimizer": FUSED}), (2, {})])
def test_skipped_step_counts_and_fires_no_events_of_the_optimizer(
    loop, accumulate_batches, changes
):
    seen = []

    def note(event, state):
        seen.append((event, state.timestamp.batch))
        for gradient in state.current_gradients().values():
            assert event is not Event.BEFORE_OPTIMIZER_STEP or gradient.isfinite().all()
        return state

    run = Run([OnSteps(note)], dense_net, precision="fp16", scale=OVERFLOWS, **changes)
    LOOPS[loop](attrs.evolve(run, accumulate_batches=accumulate_batches))

    steps = 8 // accumulate_batches
    stepped = [batch for event, batch in seen if event is Event.BEFORE_OPTIMIZER_STEP]
    assert 1 < len(stepped) < steps
    for event in OPTIMIZER_EVENTS:
        assert [batch for one, batch in seen if one is event] == stepped
    assert [batch for one, batch in seen if one is Event.BATCH_END] == list(range(1, steps + 1))


@full_loops
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_norms_and_losses_have_the_precision_of_the_loop(loop, precision):
    dtypes, losses = set(), []

    def net():
        model = dense_net()
        model[3].register_forward_pre_hook(lambda _, inputs: dtypes.add(inputs[0].dtype))
        return model

    def loss(outputs, targets):
        losses.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
        return cross_entropy(outputs, targets)

    algorithms = [*ON_BATCHES[:2], LowPrecisionLayerNorm()]
    LOOPS[loop](Run(algorithms, net, precision=precision, loss_fn=loss))

    assert dtypes == {DTYPES[precision]}
    # In the first batch, the algorithms compare the loss with a cross entropy.
    assert set(losses[-7:]) == {(True, DTYPES[precision])}


def test_smoothed_loss_in_bfloat16_matches_that_of_torch():
    run = Run([LabelSmoothing(0.1)], dense_net, precision="bf16")
    smoothed = partial(cross_entropy, label_smoothing=0.1)

    torch.testing.assert_close(
        trained(own_loop(run)),
        trained(own_loop(attrs.evolve(run, algorithms=[], loss_fn=smoothed))),
    )


# --- resume ---

STATEFUL = ["EMA", "SWA", "LayerFreezing", "ProgressiveResizing", SIX]
"""Rows with a clock or a memory: six steps, or four of two batches each."""
NOISY = row(SIX, batches=partial(noisy_loader, images=True))
HALVED = Run([*six_algorithms()[:2], *ON_GRADIENTS], accumulate_batches=2, examples=24)
BY_CALLBACK = [Run(ON_GRADIENTS, dense_net, accumulate_batches=n) for n in (1, 2)]
CLIPPED = [attrs.evolve(run, algorithms=[CLIP]) for run in BY_CALLBACK]
AMP = [
    Run(ON_GRADIENTS, dense_net, examples=10, precision=precision, scale=scale)
    for precision, scale in [("bf16", 1.0), ("fp16", 4.0), ("fp16", OVERFLOWS)]
]
IN_MIXINS = [
    *((name, 1, 4) for name in STATEFUL),
    *[(SIX, 1, 2), (SIX, 1, 3), (SIX, 2, 1), ("EMA", 2, 3), ("EMA", 1, 6)],
]
RESUMED = [
    *(
        ("own loop", row(name, keyed=False), at)
        for name, at in each_once(works_in("own loop"), range(1, 7))
    ),
    *((loop, NOISY, at) for loop in BY_HAND for at in (2, 3, 4)),
    *((loop, HALVED, at) for loop, at in each_once(BY_HAND, [2, 3, 4])),
    *(
        (loop, row(name, keyed=is_keyed(loop), accumulate_batches=number), at)
        for loop in FULL
        if "mixin" in loop
        for name, number, at in IN_MIXINS
    ),
    *(
        (loop, runs[number - 1], at)
        for loop, runs in [("Lightning, callback", BY_CALLBACK), ("HF, callback", CLIPPED)]
        if loop in LOOPS
        for number, at in [(1, 2), (1, 4), (2, 1), (2, 3)]
    ),
    *(
        (loop, run, at)
        for loop in LOOPS
        if loop in ("own loop", "Lightning, mixin")
        for run in AMP
        for at in (1, 3, 5)
    ),
]


@pytest.mark.parametrize(("loop", "run", "at"), RESUMED, ids=str)
def test_resumed_training_is_that_of_the_trainer(loop, run, at, saved):
    resumed = LOOPS[loop](run, saved(loop, run)[0], resume=at)

    assert same(trained(resumed), expected(run)[0])
