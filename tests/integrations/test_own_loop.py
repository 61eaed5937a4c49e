"""Adapters in a loop written by hand: batches, evaluations, states, and what they refuse."""

import io
from contextlib import suppress
from itertools import islice

import attrs
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Event
from composable.algorithms import (
    EMA,
    BlurPool,
    GradientClipping,
    LabelSmoothing,
    MixUp,
    NoOpModel,
)
from composable.core.algorithm import FunctionAlgorithm
from composable.models import Classifier
from tests.integrations.loops import PER_BATCH, Run, own_loop, row, trained
from tests.integrations.table import SGD, SIX, dense_net, image_net
from tests.support.data import batches
from tests.support.models import mlp, same, weights
from tests.support.runs import trained as by_trainer

CLIP = GradientClipping("norm", 0.05)


def begin(algorithms=(), model=None, **options):
    """Return an adapter and its optimizer."""
    model = mlp() if model is None else model
    optimizer = SGD(model.parameters())
    options = {"loss_fn": cross_entropy, **options}
    return Run(algorithms).adapter(model, options.pop("optimizer", optimizer), **options), optimizer


def step(t, optimizer, batch, loss=lambda t, batch: t.loss(t.model(batch[0]))):
    loss(t, batch).backward()
    optimizer.step()
    optimizer.zero_grad()


def steps(t, optimizer, loader, *loss):
    """Train for two epochs with the loop of the page, and stop after each batch."""
    for _ in range(2):
        for batch in t.epoch(loader):
            yield step(t, optimizer, batch, *loss)


def train(*args):
    return [None for _ in steps(*args)]


# --- epochs and batches ---


def test_each_microbatch_has_its_events():
    events = []

    def note(event, state):
        events.append(event)
        return state

    own_loop(Run([FunctionAlgorithm(note)], accumulate_batches=2, epochs=1))

    assert [events.count(event) for event in PER_BATCH] == [5, 4, 4]
    assert [events.count(e) for e in (Event.BATCH_START, Event.AFTER_TRAIN_BATCH)] == [2, 2]


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
    assert all(frozen.isdisjoint(gradients) for frozen, gradients in seen)


def test_model_with_its_own_loss_needs_no_loss_fn_and_ema_no_max_duration():
    algorithms = [LabelSmoothing(), EMA("2ba")]
    t, optimizer = begin(algorithms, Classifier(mlp()), loss_fn=None, max_duration=None)
    train(t, optimizer, batches(), lambda t, batch: t.loss(t.model(batch)))

    expected = by_trainer(Classifier(mlp()), batches(), loss_fn=None, algorithms=algorithms)
    assert "EMA" in t.state.averages
    assert same(weights(t.model), expected)


def test_algorithm_that_reads_no_loss_works_without_it():
    def loss(t, batch):
        return cross_entropy(t.model(batch[0]), batch[1])

    t, optimizer = begin([CLIP])
    train(t, optimizer, batches(), loss)

    assert same(weights(t.model), by_trainer(mlp(), batches(), algorithms=[CLIP]))


def test_skipped_steps_that_clear_gradients_are_accepted():
    t, optimizer = begin([CLIP])
    for i, (inputs, _) in enumerate(t.epoch(batches(16))):
        loss = t.loss(t.model(inputs))
        optimizer.zero_grad(set_to_none=bool(i % 2))
        loss.backward()
        if i % 3 == 0:
            optimizer.step()

    assert t.state.timestamp.batch == 4


# --- evaluations ---


@pytest.mark.parametrize(
    "run", [row(SIX), Run([CLIP, EMA("2ba")], dense_net, accumulate_batches=2)]
)
def test_evaluations_before_and_after_each_step_change_nothing(run):
    def evaluate(t):
        with t.evaluating() as model:
            model(run.probe())

    assert same(trained(own_loop(attrs.evolve(run, between=evaluate))), run.by_trainer())


def test_evaluation_restores_weights_modes_and_gradients():
    t, optimizer = begin([EMA("2ba")], mlp(dropout=0.5))
    train(t, optimizer, batches())
    before = weights(t.model)

    with suppress(KeyError), t.evaluating() as model:
        assert model is t.model
        assert not model.training
        assert not torch.is_grad_enabled()
        assert not same(weights(model), before)
        raise KeyError

    assert same(weights(t.model), before)
    assert t.model.training
    assert torch.is_grad_enabled()


# --- states ---


def saved_and_loaded(tree):
    """Return what torch reads of a saved tree without running code."""
    torch.save(tree, file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_saved_state_has_the_seed_and_the_clock_and_does_not_change():
    t, optimizer = begin([EMA("2ba")])
    going = steps(t, optimizer, batches())
    next(going), next(going)
    saved = t.state_dict()
    before = saved_and_loaded(saved)
    other, _ = begin([EMA("2ba")], seed=18)
    other.load_state_dict(before)

    for name in ("key", "timestamp", "previous_timestamp"):
        assert getattr(other.state, name) == getattr(t.state, name)
    assert t.state.previous_timestamp.batch == 1
    assert len(list(going)) == 4
    assert same(list(saved["tensors"].values()), list(before["tensors"].values()))


@pytest.mark.parametrize("broken", [{}, {"tensors": {}, "data": {}}, {"tensors": {}, "data": 3}])
def test_rejects_a_state_that_is_none(broken):
    t, _ = begin([EMA("2ba")])

    with pytest.raises(ValueError, match=r"saved must be the value of t\.state_dict\(\)"):
        t.load_state_dict(broken)

    assert t.state.timestamp.batch == 0


# --- what is refused ---


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"optimizer": "SGD"}, TypeError, "optimizer='SGD' must be a torch.optim.Optimizer"),
        ({"optimizer": SGD(mlp().parameters())}, ValueError, "none of the model's parameters"),
        ({"optimizer": None}, ValueError, r"call t\.follow\(optimizer\) first"),
        ({"loss_fn": "mse"}, TypeError, "loss_fn='mse' must be a function"),
        ({"max_duration": "0.5dur"}, ValueError, "max_duration='0.5dur' must be in epochs"),
        ({"epoch_length": 0}, ValueError, "epoch_length=0 must be at least 1"),
        ({"seed": -1}, ValueError, "seed=-1 is out of range"),
        ({"precision": "amp"}, ValueError, "precision='amp' is chosen by the external loop"),
        ({"precision": "bf16-mixed"}, ValueError, "'amp_bf16' here"),
        ({"precision": torch.bfloat16}, TypeError, "precision=torch.bfloat16 must be one of"),
    ],
)
def test_rejects_invalid_arguments(options, error, message):
    with pytest.raises(error, match=message):
        next(begin(**options)[0].epoch(batches()))


@pytest.mark.parametrize(
    ("options", "act", "error", "message"),
    [
        ({}, lambda loss, _: (loss(), loss()), RuntimeError, "called twice for one batch"),
        ({}, lambda loss, optimizer: optimizer.step(loss), TypeError, "closure"),
        ({"loss_fn": None}, lambda loss, _: loss(), ValueError, "pass loss_fn to adapt_loop"),
    ],
)
def test_rejects_second_losses_closures_and_missing_losses(options, act, error, message):
    t, optimizer = begin([], **options)
    inputs, _ = next(epoch := t.epoch(batches()))

    with pytest.raises(error, match=message):
        act(lambda: t.loss(t.model(inputs)), optimizer)
    epoch.close()


@pytest.mark.parametrize(
    ("algorithm", "event"), [(LabelSmoothing(), "BEFORE_LOSS"), (NoOpModel(), "INIT")]
)
def test_rejects_step_without_the_loss_that_an_algorithm_needs(algorithm, event):
    t, _ = begin([algorithm])
    inputs, _ = next(t.epoch(batches()))
    t.model(inputs).sum().backward()

    with pytest.raises(RuntimeError, match=rf"{algorithm.name} acts at {event}.*t\.loss\("):
        t.before_step()


@pytest.mark.parametrize(("at", "how"), [("EPOCH_START", ""), ("EVAL_START", " by one with other")])
def test_rejects_replaced_model(at, how):
    def replace(event, state):
        return state.evolve(model=nn.Linear(4, 3)) if event is Event[at] else state

    t, _ = begin([replace])
    enter = t.evaluating().__enter__ if how else t.epoch(batches()).__next__

    with pytest.raises(RuntimeError, match=f"replaced the model at {at}{how}"):
        enter()


@pytest.mark.parametrize(
    ("every", "options", "error", "message"),
    [
        (2, {"accumulate_batches": 1}, RuntimeError, "pass accumulate_batches=n to t.epoch"),
        (4, {"accumulate_batches": 2}, RuntimeError, "pass accumulate_batches=n to t.epoch"),
        (2, {"accumulate_batches": 4}, RuntimeError, "stepped after 2 batches in the midd"),
        (-2, {"accumulate_batches": 2}, RuntimeError, "step at the end of an epoch too"),
        (2, {"accumulate_batches": 0}, ValueError, "accumulate_batches=0 must be at least 1"),
        (2, {"accumulate_batches": "2"}, TypeError, "accumulate_batches='2' must be an integer"),
    ],
)
def test_rejects_loops_that_accumulate_otherwise(every, options, error, message):
    t, optimizer = begin([CLIP])

    def train():
        for _ in range(2):
            for i, (inputs, _) in enumerate(t.epoch(batches(20), **options), 1):
                t.loss(t.model(inputs)).backward()
                if i % every == 0 or (every > 0 and i == 5):
                    optimizer.step()
                    optimizer.zero_grad()

    with pytest.raises(error, match=message):
        train()


@pytest.mark.parametrize("part", [lambda model: model, lambda model: model[:3]])
def test_rejects_gradients_of_the_model_before_surgery(part):
    model = image_net()
    t, optimizer = begin([BlurPool(min_channels=0)], model)
    loader = Run().loader()

    inputs, _ = next(epoch := t.epoch(loader))
    with pytest.raises(RuntimeError, match=r"calls \w+ of the model that was passed to adapt_loop"):
        part(model)(inputs)
    epoch.close()

    model(inputs)  # outside of the loop
    t, optimizer = begin([BlurPool(min_channels=0)], model)
    for inputs, _ in t.epoch(loader):
        with torch.no_grad():
            model(inputs)
        t.loss(t.model(inputs)).backward()
        optimizer.step()


# --- several adapters, several iterations, and steps that no epoch sees ---


def averaging():
    return begin([EMA("2ba"), GradientClipping("norm", 0.1)])


@pytest.mark.parametrize("way", ["others", "zip"])
def test_adapters_on_one_loader_train_as_each_alone(way):
    (t, first), (u, second), (alone, only) = averaging(), averaging(), averaging()
    for _ in range(2):
        for batch in alone.epoch(batches()):
            step(alone, only, batch)
        if way == "others":
            for batch in t.epoch(batches(), others=[u]):
                step(t, first, batch)
                step(u, second, batch)
        else:
            for batch, other in zip(t.epoch(batches()), u.epoch(batches()), strict=False):
                step(t, first, batch)
                step(u, second, other)
        for one in (t, u):
            assert same(trained(one), trained(alone))


def test_another_adapter_steps_in_some_batches_only():
    (t, first), (u, second) = averaging(), averaging()
    for i, batch in enumerate(t.epoch(batches(), others=[u])):
        step(t, first, batch)
        if i % 2:
            step(u, second, batch)
    assert u.state.timestamp.batch == t.state.timestamp.batch == i + 1


@pytest.mark.parametrize("when", ["before an epoch", "after an epoch", "after a break"])
def test_a_step_outside_of_an_epoch_raises(when):
    t, optimizer = averaging()
    for batch in t.epoch(batches()) if when != "before an epoch" else ():
        step(t, optimizer, batch)
        if when == "after a break":
            break
    with pytest.raises(RuntimeError, match=r"outside of t.epoch\(loader\), where .*EMA.* nothing"):
        optimizer.step()


def test_an_adapter_that_is_not_iterated_raises_in_the_step():
    (t, first), (u, second) = averaging(), averaging()
    for batch in t.epoch(batches()):
        step(t, first, batch)
        u.model(batch[0]).sum().backward()
        with pytest.raises(RuntimeError, match=r"t.epoch\(loader, others=\[u\]\)"):
            second.step()
        break


def test_algorithms_that_do_nothing_in_training_allow_any_step():
    _, optimizer = begin([])
    optimizer.step()


def test_the_state_of_an_optimizer_may_be_initialized_by_a_step_of_length_0():
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    t, optimizer = averaging()
    get_optimizer_state_dict(t.model, optimizer)


def test_the_last_adapter_owns_an_optimizer():
    t, optimizer = averaging()
    u, _ = begin([EMA("2ba")], t.model, optimizer=optimizer)
    for batch in u.epoch(batches()):
        step(u, optimizer, batch)
    with pytest.raises(RuntimeError, match=r"the SGD of t was passed to another adapt_loop"):
        next(t.epoch(batches()))


def test_an_algorithm_may_replace_the_optimizer_when_an_epoch_starts():
    other = []

    def replace(event, state):
        if event is not Event.EPOCH_START:
            return state
        other.append(torch.optim.SGD(state.model.parameters(), lr=0.1))
        return state.evolve(optimizers=(other[-1],))

    t, _ = begin([replace])
    for _ in range(2):
        for batch in t.epoch(batches()):
            step(t, other[-1], batch)
    assert t.state.timestamp.epoch == 2


def test_an_epoch_that_is_started_during_another_ends_it():
    t, _ = averaging()
    with pytest.raises(RuntimeError, match="was called during this iteration"):
        list(islice(zip(t.epoch(batches()), t.epoch(batches()), strict=False), 2))


def test_a_state_that_is_loaded_during_an_epoch_ends_it():
    t, optimizer = averaging()
    saved = t.state_dict()
    epoch = t.epoch(batches())
    step(t, optimizer, next(epoch))
    t.load_state_dict(saved)
    with pytest.raises(RuntimeError, match="was called during this iteration"):
        next(epoch)
    assert t.state.timestamp.batch == 0


def test_an_iteration_that_is_closed_late_changes_nothing():
    t, optimizer = averaging()
    late = t.epoch(batches())
    next(late)
    batch = next(epoch := t.epoch(batches()))
    late.close()
    step(t, optimizer, batch)
    next(epoch)
    assert t.state.timestamp.batch == 1


def test_another_adapter_cannot_change_the_batch():
    (t, _), (u, _) = averaging(), begin([MixUp()])
    with pytest.raises(RuntimeError, match=r"in others= \(MixUp\) changes the batch"):
        next(t.epoch(batches(), others=[u]))


def test_adapters_at_different_batches_are_refused():
    (t, first), (u, _) = averaging(), averaging()
    for batch in t.epoch(batches()):
        step(t, first, batch)
        break
    with pytest.raises(ValueError, match="at batch 0 of its epoch, and t is at batch 1"):
        next(t.epoch(batches(), others=[u]))
