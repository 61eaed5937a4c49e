"""Mixed precision in other loops: bfloat16, and float16 with a loss scaler."""

import copy
from functools import partial

import attrs
import pytest
import torch
from torch.amp import GradScaler
from torch.nn.functional import cross_entropy

from composable import Event, Precision
from composable.algorithms import (
    EMA,
    GradientClipping,
    LabelSmoothing,
    LowPrecisionLayerNorm,
    MixUp,
    SelectiveBackprop,
)
from composable.core.algorithm import FunctionAlgorithm
from composable.functional import clip_gradients, ema
from tests.integrations.loops import DTYPES, FULL, LOOPS, Run, dense_net, own_loop, trained
from tests.integrations.table import SGD
from tests.integrations.test_accumulation_of_adapters import by_trainer
from tests.support.models import same, weights

CLIP = GradientClipping("norm", 0.05)
ON_GRADIENTS = [CLIP, EMA("2ba")]
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


ON_BATCHES = [MixUp(), LabelSmoothing(), SelectiveBackprop(0.0, 1.0)]
ALL = [*ON_BATCHES, LowPrecisionLayerNorm(), *ON_GRADIENTS]
FUSED = partial(torch.optim.AdamW, lr=0.01, fused=True)  # SGD's momentum bears no first skip
OVERFLOWS = 2.0**19
"""A loss scale at which the first steps overflow in float16."""


def by_hand(run):
    """Train without the library, and count the steps of the optimizer."""
    model = run.net()
    optimizer, scaler = run.optimizer(model.parameters()), run.scaler()
    average, count = None, 0
    for _ in range(run.epochs):
        for inputs, targets in run.loader():
            with run.autocast():
                loss = cross_entropy(model(inputs), targets)
            scaler = scaler or GradScaler("cpu", enabled=False)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            held = [p.grad for p in model.parameters()]
            clipped = clip_gradients(held, threshold=0.05)
            finite = all(bool(grad.isfinite().all()) for grad in held)
            for parameter, grad in zip(model.parameters(), clipped, strict=True):
                parameter.grad = grad if finite else parameter.grad
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            count += finite
            now = weights(model)
            average = now if average is None else ema(average, now, smoothing=EMA("2ba").share_kept)
    return [*weights(model).values(), *average.values()], count


@pytest.mark.parametrize("loop", ["own loop", "Lightning, callback"])
@pytest.mark.parametrize(
    ("precision", "scale", "skipped"), [("bf16", 0, 0), ("fp16", 4.0, 0), ("fp16", OVERFLOWS, 3)]
)
def test_matches_a_loop_by_hand(loop, precision, scale, skipped):
    run = Run(ON_GRADIENTS, net=dense_net, precision=precision, scale=scale)
    expected, steps = by_hand(run)
    t = LOOPS[loop](run)

    assert steps == 8 - skipped
    assert same([x.flatten() for x in trained(t)], [x.flatten() for x in expected])
    assert t.state.timestamp.batch == 8


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("precision", "scale", "accumulate_batches"),
    [("bf16", 1, 2), ("fp16", 4.0, 1), ("fp16", OVERFLOWS, 1), ("fp16", OVERFLOWS, 2)],
)
def test_matches_the_precision_of_the_trainer(loop, precision, scale, accumulate_batches):
    run = Run(
        ALL if loop in FULL else ON_GRADIENTS,
        dense_net,
        precision=precision,
        scale=scale,
        accumulate_batches=accumulate_batches,
    )
    expected = by_trainer(
        run,
        run.loader(),
        precision=Precision(f"amp_{precision}", initial_scale=scale),
        accumulate_batches=accumulate_batches,
        # Otherwise gradients are rescaled after the batch, and overflow at another scale.
        loss_mean_over="examples",
    )

    assert same(trained(LOOPS[loop](run)), expected)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("scale", [4.0, OVERFLOWS])
def test_fused_optimizers_step_with_unscaled_gradients(loop, scale):
    run = Run(ON_GRADIENTS, net=dense_net, precision="fp16", scale=scale, optimizer=FUSED)
    expected, _ = by_hand(run)

    assert same([x.flatten() for x in trained(LOOPS[loop](run))], [x.flatten() for x in expected])


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(("accumulate_batches", "optimizer"), [(1, FUSED), (2, SGD)])
def test_skipped_step_counts_and_fires_no_events_of_the_optimizer(
    loop, accumulate_batches, optimizer
):
    seen = []

    def note(event, state):
        seen.append((event, state.timestamp.batch))
        for gradient in state.current_gradients().values():
            assert event is not Event.BEFORE_OPTIMIZER_STEP or gradient.isfinite().all()
        return state

    algorithm = OnSteps(note)
    run = Run(
        [algorithm],
        net=dense_net,
        precision="fp16",
        scale=OVERFLOWS,
        accumulate_batches=accumulate_batches,
        optimizer=optimizer,
    )
    t = LOOPS[loop](run)
    steps = 8 // accumulate_batches

    assert t.state.timestamp.batch == steps
    stepped = [batch for event, batch in seen if event is Event.BEFORE_OPTIMIZER_STEP]
    assert 1 < len(stepped) < steps
    for event in OPTIMIZER_EVENTS:
        assert [batch for one, batch in seen if one is event] == stepped
    assert [batch for one, batch in seen if one is Event.BATCH_END] == list(range(1, steps + 1))


@pytest.mark.parametrize("loop", FULL)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_norms_act(loop, precision):
    dtypes = set()

    def net():
        model = dense_net()
        model[3].register_forward_pre_hook(lambda _, inputs: dtypes.add(inputs[0].dtype))
        return model

    LOOPS[loop](Run([LowPrecisionLayerNorm()], net=net, precision=precision))

    assert dtypes == {DTYPES[precision]}


@pytest.mark.parametrize("loop", FULL)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_replaced_losses_are_computed_under_autocast(loop, precision):
    seen = []

    def loss(outputs, targets):
        seen.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
        return cross_entropy(outputs, targets)

    LOOPS[loop](Run(ON_BATCHES[:2], net=dense_net, precision=precision, loss_fn=loss))

    # In the first batch, the algorithms compare the loss with a cross entropy.
    assert set(seen[-7:]) == {(True, DTYPES[precision])}


def test_smoothed_loss_in_bfloat16_matches_that_of_torch():
    run = Run([LabelSmoothing(0.1)], net=dense_net, precision="bf16")
    smoothed = partial(cross_entropy, label_smoothing=0.1)

    torch.testing.assert_close(
        trained(own_loop(run)),
        trained(own_loop(attrs.evolve(run, algorithms=[], loss_fn=smoothed))),
    )


@pytest.mark.parametrize("loop", LOOPS)
def test_averages_are_kept_in_float32(loop):
    t = LOOPS[loop](Run([EMA("2ba")], net=dense_net, precision="bf16"))

    average = t.state.averages["EMA"].values()
    assert {tensor.dtype for tensor in average} == {torch.float32}


@pytest.mark.parametrize("stop", [2, 5])
def test_own_loop_resumes_with_its_scaler(stop):
    run = Run(ON_GRADIENTS, net=dense_net, precision="fp16", scale=OVERFLOWS)

    def train(until, saved=None):
        model = run.net()
        optimizer, scaler = SGD(model.parameters()), run.scaler()
        t = run.adapter(model, optimizer)
        parts = (t, model, optimizer, scaler)
        for part, value in zip(parts, saved or (), strict=False):
            part.load_state_dict(value)
        for _ in range(t.state.timestamp.epoch, run.epochs):
            for inputs, _ in t.epoch(run.loader()):
                with run.autocast():
                    loss = t.loss(t.model(inputs))
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                if t.state.timestamp.batch + 1 == until:
                    t.end_step()
                    return parts
        return parts

    saved = [copy.deepcopy(part.state_dict()) for part in train(stop)]

    assert same(trained(train(None, saved)[0]), trained(train(None)[0]))


@pytest.mark.parametrize(
    ("precision", "error", "message"),
    [
        ("amp", ValueError, "precision='amp' is chosen by the external loop"),
        ("bf16-mixed", ValueError, "'amp_bf16' here"),
        (torch.bfloat16, TypeError, "precision=torch.bfloat16 must be one of"),
    ],
)
def test_rejects_other_precisions(precision, error, message):
    with pytest.raises(error, match=message):
        Run().adapter(dense_net(), precision=precision)
