"""Steps of several microbatches in other loops."""

import copy
from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy

from composable import Event, Key, Trainer
from composable.algorithms import EMA, GradientClipping, LabelSmoothing, LayerFreezing, MixUp
from composable.core.algorithm import FunctionAlgorithm
from composable.functional import mixup
from tests.integrations import test_huggingface
from tests.integrations.loops import FULL, LOOPS, Run, dense_net, own_loop, trained
from tests.integrations.table import SGD
from tests.integrations.test_own_loop import LOOPS as PREPARED
from tests.support.algorithms import six_algorithms
from tests.support.campaign import each_once
from tests.support.models import same, weights
from tests.support.runs import training_weights

CLIP = GradientClipping("norm", 0.05)
ON_GRADIENTS = [CLIP, EMA("2ba")]
PER_STEP = [*ON_GRADIENTS, LabelSmoothing(), LayerFreezing(0.25, 0.5)]
PER_BATCH = (Event.BEFORE_DATALOADER, Event.AFTER_DATALOADER, Event.BEFORE_TRAIN_BATCH)


def by_trainer(run, batches, **options):
    """Train with the Trainer, and return the weights, and those of an evaluation."""
    trainer = Trainer(
        run.net(),
        train_dataloader=batches,
        optimizers=SGD,
        algorithms=list(run.algorithms),
        loss_fn=cross_entropy,
        max_duration=f"{run.epochs}ep",
        seed=17,
        progress_bar=False,
        device="cpu",
        **options,
    )
    trainer.fit()
    own = list(training_weights(trainer).values())
    average = trainer.state.averages.get("EMA")
    return [*own, *(own if average is None else (average[name] for name in weights(run.net())))]


@pytest.mark.parametrize("loop", FULL)
@pytest.mark.parametrize("algorithms", [PER_STEP, six_algorithms()])
def test_matches_the_trainer(loop, algorithms):
    run = Run(algorithms, accumulate_batches=2)
    t = LOOPS[loop](run)

    expected = by_trainer(run, run.loader(), accumulate_batches=2)
    assert same([x.flatten() for x in trained(t)], [x.flatten() for x in expected])
    assert t.state.timestamp.batch == 4


@pytest.mark.parametrize("loop", LOOPS)
def test_matches_the_trainer_without_dropout(loop):  # which no callback can seed
    run = Run(ON_GRADIENTS, net=dense_net, accumulate_batches=2)
    t = LOOPS[loop](run)

    assert same(trained(t), by_trainer(run, run.loader(), accumulate_batches=2))
    assert t.state.timestamp.batch == 4


@pytest.mark.parametrize(
    ("loop", "sizes"), each_once(list(FULL), [(20, 2), (18, 2), (18, 3), (10, 4), (6, 2)])
)
def test_short_last_steps_and_batches_match_the_trainer(loop, sizes):
    count, number = sizes
    # Without clipping by norm, which would hide gradients of another scale.
    run = Run([EMA("2ba")], net=dense_net, examples=count, accumulate_batches=number)
    t = LOOPS[loop](run)

    expected = by_trainer(run, run.loader(), accumulate_batches=number)
    torch.testing.assert_close(trained(t), expected)
    assert t.state.timestamp.batch == 2 * -(-count // (4 * number))
    assert t.state.timestamp.sample == 2 * count


class TakesKeywords(test_huggingface.Classifier):
    """A model that would use the number of items in the batch, as language models do."""

    def forward(self, pixel_values, labels=None, **kwargs):
        return super().forward(pixel_values, labels)


def test_hugging_face_models_with_loss_keywords_accumulate_the_mean(monkeypatch):
    monkeypatch.setattr(test_huggingface, "Classifier", TakesKeywords)
    run = Run(ON_GRADIENTS, accumulate_batches=2, net=dense_net)

    assert same(trained(LOOPS["HF, mixin"](run)), trained(own_loop(run)))


def recorded(run, train):
    """Return the events of a run, and what an algorithm sees at them."""
    seen = []

    def note(event, state):
        loss = state.loss is not None and state.loss.requires_grad
        gradients = {name: grad.clone() for name, grad in state.current_gradients().items()}
        seen.append((event, state.timestamp.batch, state.timestamp.epoch, loss, gradients))
        return state

    train(Run([FunctionAlgorithm(note)], net=dense_net, accumulate_batches=run.accumulate_batches))
    return [one for one in seen if one[0] not in PER_BATCH]


def test_events_and_gradients_match_the_trainer():
    run = Run(net=dense_net, accumulate_batches=2)
    here = recorded(run, lambda run: own_loop(run).finish())
    there = recorded(run, lambda run: by_trainer(run, run.loader(), accumulate_batches=2))

    assert [one[:4] for one in here] == [one[:4] for one in there]
    for (*_, ours), (*_, theirs) in zip(here, there, strict=True):
        assert same(ours, theirs)


def test_losses_of_steps_match_the_trainer():
    def losses(train):
        seen = []

        def note(event, state):
            if event in (Event.AFTER_TRAIN_BATCH, Event.BATCH_END):
                seen.append((event, state.loss.item()))
            return state

        train(Run([FunctionAlgorithm(note)], dense_net, examples=18, accumulate_batches=3))
        return seen

    there = losses(lambda run: by_trainer(run, run.loader(), accumulate_batches=3))
    assert losses(own_loop) == there
    assert len(there) == 8


def test_first_batch_of_a_step_decides_what_is_frozen():
    seen = []

    def freeze(event, state):
        if event is Event.BEFORE_TRAIN_BATCH:
            names = [name for name, _ in state.model.named_parameters()]
            return state.evolve(frozen={names[len(seen) % 4]})
        if event is Event.AFTER_BACKWARD:
            seen.append((state.frozen, frozenset(state.current_gradients())))
        return state

    own_loop(Run([FunctionAlgorithm(freeze)], dense_net, accumulate_batches=2, epochs=1))

    assert [frozen for frozen, _ in seen] == [{"1.weight"}] * 2 + [{"2.weight"}] * 2
    assert all(frozen.isdisjoint(trained) for frozen, trained in seen)


def test_events_of_batches_fire_for_each_microbatch():
    seen = []

    def note(event, state):
        seen.append(event)
        return state

    own_loop(Run([FunctionAlgorithm(note)], accumulate_batches=2, epochs=1))

    assert [seen.count(event) for event in PER_BATCH] == [5, 4, 4]
    assert [seen.count(e) for e in (Event.BATCH_START, Event.AFTER_TRAIN_BATCH)] == [2, 2]


def test_each_microbatch_has_random_numbers_of_its_own():
    run = Run([MixUp()], accumulate_batches=2, epochs=1)
    own_loop(run)

    for i, ((mixed, _), (inputs, targets)) in enumerate(zip(run.seen, run.loader(), strict=True)):
        key = Key(17).fold("batch", 1) if i % 2 else Key(17)
        expected = mixup(inputs, targets, generator=key.fold("MixUp", i // 2).generator())
        assert torch.equal(mixed, expected.inputs)


def resumable(loop="own loop", saved=None):
    """Build a run in a loop, from the state that it saved."""
    run = Run([*six_algorithms()[:2], *ON_GRADIENTS], accumulate_batches=2, examples=24)
    model = run.net()
    optimizer = SGD(model.parameters())
    t = run.adapter(model, optimizer)
    for part, value in zip((t, model, optimizer), saved or (), strict=False):
        part.load_state_dict(value)
    prepare, backward = PREPARED[loop]()
    trained_model, wrapped, loader = prepare(model, optimizer, run.loader())

    def train(until=None):
        for _ in range(t.state.timestamp.epoch, run.epochs):
            for i, (inputs, _) in enumerate(t.epoch(loader, accumulate_batches=2), 1):
                backward(t.loss(trained_model(inputs)) / 2)
                if i % 2 == 0:
                    wrapped.step()
                    wrapped.zero_grad()
                    if t.state.timestamp.batch + 1 == until:
                        return

    return t, train, lambda: [part.state_dict() for part in (t, model, optimizer)]


@pytest.mark.parametrize(
    ("loop", "stop"), each_once(["own loop", "Fabric", "Accelerate"], [2, 3, 4])
)
def test_loops_resume_between_steps(loop, stop):
    whole, train, _ = resumable(loop)
    train()
    _, train, save = resumable(loop)
    train(until=stop)
    second, train, _ = resumable(loop, copy.deepcopy(save()))
    train()

    assert same(trained(second), trained(whole))


def test_state_is_not_saved_between_microbatches():
    t, _, _ = resumable()
    run = Run(accumulate_batches=2)
    epoch = t.epoch(run.loader(), accumulate_batches=2)
    inputs, _ = next(epoch)
    t.loss(t.model(inputs)).backward()
    next(epoch)

    with pytest.raises(RuntimeError, match="in the middle of a batch"):
        t.state_dict()


def test_evaluation_between_microbatches_changes_nothing():
    run = Run(ON_GRADIENTS, accumulate_batches=2, net=dense_net)
    model = run.net()
    optimizer = SGD(model.parameters())
    t = run.adapter(model, optimizer)
    for _ in range(2):
        for i, (inputs, _) in enumerate(t.epoch(run.loader(), accumulate_batches=2)):
            (t.loss(t.model(inputs)) / 2).backward()
            if i:
                with t.evaluating() as evaluated:
                    evaluated(inputs)
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()

    assert same(trained(t), trained(own_loop(run)))


# Errors


def step_every(n, *, accumulate_batches, epochs=1, at_end=True):
    """Train with a loop that steps once for n batches."""
    run = Run([CLIP], net=dense_net, examples=20)
    model = run.net()
    optimizer = SGD(model.parameters())
    t = run.adapter(model, optimizer)
    for _ in range(epochs):
        for i, (inputs, _) in enumerate(
            t.epoch(run.loader(), accumulate_batches=accumulate_batches), 1
        ):
            t.loss(t.model(inputs)).backward()
            if i % n == 0 or (at_end and i == 5):
                optimizer.step()
                optimizer.zero_grad()


@pytest.mark.parametrize(
    ("train", "error", "message"),
    [
        (
            partial(step_every, 2, accumulate_batches=1),
            RuntimeError,
            "pass accumulate_batches=n to t.epoch",
        ),
        (
            partial(step_every, 4, accumulate_batches=2),
            RuntimeError,
            "pass accumulate_batches=n to t.epoch",
        ),
        (
            partial(step_every, 2, accumulate_batches=4),
            RuntimeError,
            "stepped after 2 batches in the midd",
        ),
        (
            partial(step_every, 2, accumulate_batches=2, epochs=2, at_end=False),
            RuntimeError,
            "step at the end of an epoch too",
        ),
        (
            partial(step_every, 2, accumulate_batches=0),
            ValueError,
            "accumulate_batches=0 must be at least 1",
        ),
        (
            partial(step_every, 2, accumulate_batches="2"),
            TypeError,
            "accumulate_batches='2' must be an integer, at least 1",
        ),
    ],
)
def test_rejects_loops_that_accumulate_otherwise(train, error, message):
    with pytest.raises(error, match=message):
        train()


def test_skipped_steps_that_clear_gradients_are_accepted():
    run = Run([CLIP], net=dense_net)
    model = run.net()
    optimizer = SGD(model.parameters())
    t = run.adapter(model, optimizer)
    for i, (inputs, _) in enumerate(t.epoch(run.loader())):
        loss = t.loss(t.model(inputs))
        optimizer.zero_grad(set_to_none=bool(i % 2))
        loss.backward()
        if i % 3 == 0:
            optimizer.step()

    assert t.state.timestamp.batch == 4
