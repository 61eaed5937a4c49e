"""The algorithms in a loop written by hand, without a library and with Accelerate or Fabric."""

import importlib.util
from contextlib import suppress
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Event, during
from composable.algorithms import EMA, GradientClipping, LabelSmoothing, MixUp, NoOpModel
from composable.core.algorithm import FunctionAlgorithm
from composable.integrations.external_loop import UnsupportedRequestError
from composable.models import Classifier
from tests.integrations import table
from tests.integrations.table import (
    ASKS,
    SETS,
    SGD,
    SIX,
    WITHIN,
    acts,
    loader,
    ours,
    refused_in,
    start,
    works_in,
)
from tests.support.campaign import drawn
from tests.support.data import batches, noisy_loader
from tests.support.models import mlp, same, weights
from tests.support.runs import trained


def accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    return accelerator.prepare, accelerator.backward


def fabric():
    from lightning.fabric import Fabric

    made = Fabric(accelerator="cpu", devices=1)

    def prepare(model, optimizer, loader):
        return *made.setup(model, optimizer), made.setup_dataloaders(loader)

    return prepare, made.backward


LIBRARIES = {"accelerate": ("Accelerate", accelerate), "lightning": ("Fabric", fabric)}
LOOPS = {"own loop": lambda: (lambda *parts: parts, torch.Tensor.backward)} | dict(
    one for library, one in LIBRARIES.items() if importlib.util.find_spec(library)
)


def begin(algorithms, model=None, **options):
    """LoopAdapter and their optimizer."""
    model = mlp() if model is None else model
    optimizer = SGD(model.parameters())
    return start(algorithms, model, optimizer=optimizer, **options), optimizer


def row(name):
    """LoopAdapter of a row of the table, and their optimizer."""
    model = table.net(name)
    optimizer = SGD(model.parameters())
    return table.begin(name, model, optimizer=optimizer), optimizer


def evaluated(t, name):
    """Return the weights and the outputs in evaluation."""
    return table.evaluated(t, table.probe(name))


def steps(t, optimizer, loader, *, epochs=2, model=None, backward=torch.Tensor.backward):
    """Train with the loop of the page, and stop after each batch."""
    model = t.model if model is None else model
    for _ in range(epochs):
        for inputs, _ in t.epoch(loader):
            backward(t.loss(model(inputs)))
            optimizer.step()
            optimizer.zero_grad()
            yield


def train(t, optimizer, loader, **options):
    """Train with the loop of the page."""
    for _ in steps(t, optimizer, loader, **options):
        pass


def train_with(loop, name, loader):
    """Train with the loop of a library, and return the weights and outputs."""
    prepare, backward = LOOPS[loop]()
    t, optimizer = row(name)
    model, wrapped, loader = prepare(t.model, optimizer, loader)
    train(t, wrapped, loader, model=model, backward=backward)
    return evaluated(t, name)


def tried(loop):
    """Return the algorithms to train within a loop: with a library around it, some of them."""
    return works_in(loop) if loop == "own loop" else drawn(works_in(loop), 12)


@pytest.mark.parametrize(("loop", "name"), [(loop, name) for loop in LOOPS for name in tried(loop)])
def test_matches_the_trainer(loop, name):
    result = train_with(loop, name, loader(name))

    assert same(result, ours(name, loader(name)))
    assert acts(name, result)


@pytest.mark.parametrize(
    ("loop", "name"), [(loop, name) for loop in LOOPS for name in refused_in(loop)]
)
def test_rejects_algorithm(loop, name):
    with pytest.raises(UnsupportedRequestError, match=ASKS):
        train_with(loop, name, loader(name))


@pytest.mark.parametrize(
    ("loop", "build"),
    [
        *((loop, partial(loader, shuffle=True)) for loop in LOOPS),
        *((loop, partial(noisy_loader, images=True)) for loop in LOOPS),
    ],
)
def test_loader_draws_as_in_the_trainer(loop, build):
    assert same(train_with(loop, "MixUp", build()), ours("MixUp", build()))


def test_epoch_length_is_that_of_the_loader():
    t, optimizer = row(WITHIN)

    train(t, optimizer, table.data())

    assert same(evaluated(t, WITHIN), ours(WITHIN))
    assert t.state.timestamp.sample == 20


def recorded(run, around):
    """Return what an algorithm sees at the events of a run."""
    seen = []

    def note(event, state):
        targets = state.batch and type(state.targets).__name__
        loss = state.loss is not None and state.loss.requires_grad
        gradients = state.gradients is None, sorted(state.current_gradients())
        time = state.timestamp.batch, state.timestamp.epoch
        seen.append((event, time, targets, loss, gradients))
        return state

    run(around(note))
    return seen


@pytest.mark.parametrize(
    "around",
    [
        lambda note: [FunctionAlgorithm(note)],
        lambda note: [note, MixUp(), GradientClipping("norm", 0.5)],
        lambda note: during("1ba", "3ba", note),
    ],
)
def test_events_and_states_match_the_trainer(around):
    def here(algorithms):
        t, optimizer = begin(algorithms)
        train(t, optimizer, batches())
        t.finish()

    expected = recorded(lambda algorithms: trained(mlp(), batches(), algorithms=algorithms), around)

    assert expected
    assert recorded(here, around) == expected


def test_epoch_left_by_break_ends_when_the_next_begins():
    t, optimizer = begin([EMA("1ba")])
    for _ in range(2):
        next(steps(t, optimizer, batches()))

    assert t.state.timestamp.epoch == 1
    with t.evaluating():
        assert t.state.timestamp.batch == 2  # the last batch counts too


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


def test_evaluation_in_an_epoch_changes_no_weight():
    t, optimizer = row(SIX)
    for _ in steps(t, optimizer, table.data()):
        with t.evaluating() as model:
            model(table.probe())

    assert same(evaluated(t, SIX), ours(SIX))


def test_model_with_its_own_loss_needs_no_loss_fn_and_ema_no_max_duration():
    algorithms = [*SETS["LabelSmoothing"], EMA("2ba")]
    t, optimizer = begin(algorithms, Classifier(mlp()), loss_fn=None, max_duration=None)
    for _ in range(2):
        for batch in t.epoch(batches()):
            t.loss(t.model(batch)).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert "EMA" in t.state.averages
    assert same(
        weights(t.model), trained(Classifier(mlp()), batches(), loss_fn=None, algorithms=algorithms)
    )


def test_gradients_are_clipped_after_unscaling():
    t, optimizer = begin([GradientClipping("norm", 0.01)])
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for _ in range(2):
        for inputs, _ in t.epoch(batches()):
            scaler.scale(t.loss(t.model(inputs))).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    theirs = trained(mlp(), batches(), algorithms=[GradientClipping("norm", 0.01)])
    torch.testing.assert_close(weights(t.model), theirs)


# Errors


@pytest.mark.parametrize(
    ("algorithm", "event"), [(LabelSmoothing(), "BEFORE_LOSS"), (NoOpModel(), "INIT")]
)
def test_rejects_step_without_the_loss_that_an_algorithm_needs(algorithm, event):
    t, _ = begin([algorithm])
    inputs, _ = next(t.epoch(batches()))
    t.model(inputs).sum().backward()

    with pytest.raises(RuntimeError, match=rf"{algorithm.name} acts at {event}.*t\.loss\("):
        t.before_step()


def test_algorithm_that_reads_no_loss_works_without_it():
    t, optimizer = begin([GradientClipping("norm", 0.5)])
    for _ in range(2):
        for inputs, targets in t.epoch(batches()):
            cross_entropy(t.model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert same(
        weights(t.model), trained(mlp(), batches(), algorithms=[GradientClipping("norm", 0.5)])
    )


@pytest.mark.parametrize(("at", "how"), [("EPOCH_START", ""), ("EVAL_START", " by one with other")])
def test_rejects_replaced_model(at, how):
    def replace(event, state):
        return state.evolve(model=nn.Linear(4, 3)) if event is Event[at] else state

    t, _ = begin([replace])
    enter = t.evaluating().__enter__ if how else t.epoch(batches()).__next__

    with pytest.raises(RuntimeError, match=f"replaced the model at {at}{how}"):
        enter()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"optimizer": "SGD"}, TypeError, "optimizer='SGD' must be a torch.optim.Optimizer"),
        ({"optimizer": SGD(mlp().parameters())}, ValueError, "none of the model's parameters"),
        ({"loss_fn": "mse"}, TypeError, "loss_fn='mse' must be a function"),
        ({"max_duration": "0.5dur"}, ValueError, "max_duration='0.5dur' must not be a fraction"),
        ({"epoch_length": 0}, ValueError, "epoch_length=0 must be at least 1"),
        ({"seed": -1}, ValueError, "seed=-1 is out of range"),
        ({}, ValueError, r"call t\.follow\(optimizer\) first"),
    ],
)
def test_rejects_invalid_arguments(options, error, message):
    with pytest.raises(error, match=message):
        next(start([], mlp(), **options).epoch(batches()))


@pytest.mark.parametrize(
    ("options", "step", "error", "message"),
    [
        ({}, False, RuntimeError, "called twice for one batch"),
        ({}, True, TypeError, "closure"),
        ({"loss_fn": None}, False, ValueError, "needs a loss; pass loss_fn to adapt_loop"),
    ],
)
def test_rejects_microbatches_closures_and_missing_losses(options, step, error, message):
    t, optimizer = begin([], **options)
    epoch = t.epoch(batches())
    inputs, _ = next(epoch)

    def loss():
        return t.loss(t.model(inputs))

    def act():
        return optimizer.step(loss) if step else (loss(), loss())

    with pytest.raises(error, match=message):
        act()
