"""The algorithms in a loop written by hand."""

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
from tests.integrations import table
from tests.integrations.table import (
    ASKS,
    SETS,
    SGD,
    SIX,
    WITHIN,
    acts,
    data,
    ours,
    refused_in,
    start,
    works_in,
)
from tests.support.runs import (
    batches,
    mlp,
    noisy_loader,
    plain_loop,
    same,
    shuffling_loader,
    trained,
    weights,
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


def train(t, optimizer, loader, *, epochs=2):
    """Train with the loop of the page."""
    model = t.model
    for _ in range(epochs):
        for inputs, _ in t.epoch(loader):
            t.loss(model(inputs)).backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("name", works_in("own loop"))
def test_in_a_loop_of_your_own(name):
    t, optimizer = row(name)

    train(t, optimizer, data(name))
    result = evaluated(t, name)

    assert same(result, ours(name))
    assert acts(name, result)


@pytest.mark.parametrize("name", refused_in("own loop"))
def test_refused_in_a_loop_of_your_own(name):
    with pytest.raises(UnsupportedRequestError, match=ASKS):
        row(name)


@pytest.mark.parametrize("loader", [shuffling_loader, noisy_loader])
def test_a_loader_that_draws_gives_what_it_gives_the_trainer(loader):
    t, optimizer = row("MixUp")

    train(t, optimizer, loader(images=True))

    assert same(evaluated(t, "MixUp"), ours("MixUp", loader(images=True)))


def test_without_algorithms_it_is_the_plain_loop():
    t, optimizer = begin([])

    train(t, optimizer, batches())

    model = mlp()
    assert same(weights(t.model), plain_loop(model, batches(), SGD(model.parameters())))


def test_the_loader_says_how_many_batches_an_epoch_has():
    t, optimizer = row(WITHIN)

    train(t, optimizer, data())

    assert same(evaluated(t, WITHIN), ours(WITHIN))
    assert t.state.timestamp.sample == 20


def test_with_an_adaptive_optimizer_too():
    model, algorithms = mlp(), [MixUp(), GradientClipping("norm", 0.5)]
    optimizer = torch.optim.AdamW(model.parameters())
    t = start(algorithms, model, optimizer=optimizer)

    train(t, optimizer, batches())

    adamw = partial(torch.optim.AdamW)
    assert same(weights(t.model), trained(algorithms=algorithms, optimizers=adamw))


def test_an_average_needs_no_max_duration():
    t, optimizer = begin([EMA("2ba")], max_duration=None)

    train(t, optimizer, batches())

    assert "EMA" in t.state.memory


def events_of(run):
    """Return the events that `run([algorithm])` fires, and the batch number at each."""
    seen = []

    def note(event, state):
        seen.append((event, state.timestamp.batch, state.timestamp.epoch))
        return state

    run([FunctionAlgorithm(note)])
    return seen


def test_the_events_fire_in_the_order_of_the_trainer():
    def here(algorithms):
        t, optimizer = begin(algorithms)
        train(t, optimizer, batches())
        t.finish()

    assert events_of(here) == events_of(lambda algorithms: trained(algorithms=algorithms))


def test_the_state_is_that_of_the_trainer_at_every_event():
    def states(run):
        seen = []

        def note(event, state):
            targets = state.batch and type(state.targets).__name__
            loss = state.loss is not None and state.loss.requires_grad
            seen.append(
                (event, targets, loss, state.gradients is None, sorted(state.current_gradients()))
            )
            return state

        run([note, MixUp(), GradientClipping("norm", 0.5)])
        return seen

    def here(algorithms):
        t, optimizer = begin(algorithms)
        train(t, optimizer, batches())
        t.finish()

    assert states(here) == states(lambda algorithms: trained(algorithms=algorithms))


def test_an_epoch_left_by_break_ends_when_the_next_begins():
    t, optimizer = begin([EMA("1ba")])
    for _ in range(2):
        for inputs, _ in t.epoch(batches()):
            t.loss(t.model(inputs)).backward()
            optimizer.step()
            optimizer.zero_grad()
            break

    assert t.state.timestamp.epoch == 1
    with t.evaluating():
        assert t.state.timestamp.batch == 2  # the last batch counts too


def test_after_the_loop_the_optimizer_is_left_alone():
    t, optimizer = begin([LabelSmoothing()])
    train(t, optimizer, batches(), epochs=1)
    before = t.state

    cross_entropy(t.model(batches()[0][0]), batches()[0][1]).backward()
    optimizer.step()

    assert t.state is before


def test_after_evaluating_weights_modes_and_gradients_are_back():
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


def test_evaluating_in_an_epoch_changes_no_weight():
    t, optimizer = row(SIX)
    for _ in range(2):
        for inputs, _ in t.epoch(data()):
            t.loss(t.model(inputs)).backward()
            optimizer.step()
            optimizer.zero_grad()
            with t.evaluating() as model:
                model(inputs)

    assert same(evaluated(t, SIX), ours(SIX))


def test_a_model_with_a_loss_of_its_own_needs_no_loss_fn():
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = mlp()

        def forward(self, batch):
            return self.layers(batch[0])

        def loss(self, outputs, batch):
            return cross_entropy(outputs, batch[1])

    t, optimizer = begin(SETS["SelectiveBackprop"], WithLoss(), loss_fn=None)
    for _ in range(2):
        for batch in t.epoch(batches()):
            t.loss(t.model(batch)).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert same(
        weights(t.model), trained(WithLoss(), loss_fn=None, algorithms=SETS["SelectiveBackprop"])
    )


def test_a_step_with_scaled_gradients_is_clipped_after_unscaling():
    t, optimizer = begin([GradientClipping("norm", 0.01)])
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for _ in range(2):
        for inputs, _ in t.epoch(batches()):
            scaler.scale(t.loss(t.model(inputs))).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    theirs = trained(algorithms=[GradientClipping("norm", 0.01)])
    for one, other in zip(weights(t.model), theirs, strict=True):
        torch.testing.assert_close(one, other)


# What is refused


def test_a_step_without_the_loss_names_who_needed_it():
    t, _ = begin([LabelSmoothing()])
    inputs, targets = next(t.epoch(batches()))
    cross_entropy(t.model(inputs), targets).backward()

    with pytest.raises(RuntimeError, match=r"LabelSmoothing acts at BEFORE_LOSS.*t\.loss\("):
        t.before_step()


def test_a_step_without_the_loss_that_came_with_the_model_is_refused():
    t, _ = begin([NoOpModel()])
    inputs, _ = next(t.epoch(batches()))
    t.model(inputs).backward()

    with pytest.raises(RuntimeError, match=r"NoOpModel acts at INIT.*t\.loss\("):
        t.before_step()


def test_who_needs_no_loss_of_ours_may_go_without():
    t, optimizer = begin([GradientClipping("norm", 0.5)])
    for _ in range(2):
        for inputs, targets in t.epoch(batches()):
            cross_entropy(t.model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert same(weights(t.model), trained(algorithms=[GradientClipping("norm", 0.5)]))


def test_microbatches_are_refused():
    t, _ = begin([])
    inputs, _ = next(t.epoch(batches()))
    t.loss(t.model(inputs))

    with pytest.raises(RuntimeError, match="called twice for one batch"):
        t.loss(t.model(inputs))


def test_a_closure_is_refused():
    t, optimizer = begin([])
    epoch = t.epoch(batches())
    inputs, _ = next(epoch)

    with pytest.raises(TypeError, match="closure"):
        optimizer.step(lambda: t.loss(t.model(inputs)))


def test_a_model_replaced_during_training_is_refused():
    def replace(event, state):
        return state.evolve(model=mlp()) if event is Event.EPOCH_START else state

    t, _ = begin([replace])

    with pytest.raises(RuntimeError, match="replaced the model at EPOCH_START"):
        next(t.epoch(batches()))


def test_a_model_of_another_kind_for_evaluation_is_refused():
    def replace(event, state):
        return state.evolve(model=nn.Linear(4, 3)) if event is Event.EVAL_START else state

    t, _ = begin([replace])

    with pytest.raises(RuntimeError, match="at EVAL_START by one with other parameters"):
        t.evaluating().__enter__()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"optimizer": "SGD"}, TypeError, "optimizer='SGD' must be a torch.optim.Optimizer"),
        ({"loss_fn": "mse"}, TypeError, "loss_fn='mse' must be a function"),
        ({"max_duration": "0.5dur"}, ValueError, "max_duration='0.5dur' must not be a fraction"),
        ({"epoch_length": 0}, ValueError, "epoch_length=0 must be at least 1"),
        ({"seed": -1}, ValueError, "seed=-1 is out of range"),
    ],
)
def test_a_wrong_argument_is_named(options, error, message):
    with pytest.raises(error, match=message):
        start([], mlp(), **options)


def test_the_optimizer_of_another_model_is_refused():
    with pytest.raises(ValueError, match="none of the model's parameters"):
        start([], mlp(), optimizer=SGD(mlp().parameters()))


def test_an_epoch_needs_an_optimizer():
    with pytest.raises(ValueError, match=r"call t\.follow\(optimizer\) first"):
        next(start([], mlp()).epoch(batches()))


def test_the_loss_needs_a_loss_fn():
    t, _ = begin([], loss_fn=None)
    inputs, _ = next(t.epoch(batches()))

    with pytest.raises(ValueError, match="needs a loss; pass loss_fn to adapt_loop"):
        t.loss(t.model(inputs))


def test_a_window_ends_with_the_same_batch_as_in_the_trainer():
    seen = []

    def note(event, state):
        if event in (Event.BATCH_START, Event.BATCH_END):
            seen.append((event, state.timestamp.batch))
        return state

    t, optimizer = begin(during("1ba", "3ba", note))
    train(t, optimizer, batches())
    here = list(seen)
    seen.clear()
    trained(algorithms=during("1ba", "3ba", note))

    assert here == seen
    assert [batch for event, batch in here if event is Event.BATCH_END] == [2, 3]
