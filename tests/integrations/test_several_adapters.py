"""Several adapters, several iterations, and steps of an optimizer that no epoch sees."""

from itertools import islice

import pytest
import torch
from torch.nn.functional import cross_entropy

from composable import Event
from composable.algorithms import EMA, GradientClipping, MixUp
from composable.integrations import adapt_loop
from tests.support.data import batches
from tests.support.models import mlp, same, weights


def begin(algorithms, model=None, optimizer=None):
    model = mlp() if model is None else model
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return adapt_loop(algorithms, model, optimizer, loss_fn=cross_entropy, seed=17), optimizer


def step(t, optimizer, batch):
    t.loss(t.model(batch[0])).backward()
    optimizer.step()
    optimizer.zero_grad()


def result(t):
    with t.evaluating() as model:
        return [*weights(t.model).values(), *weights(model).values()]


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
            assert one.state.timestamp.epoch == alone.state.timestamp.epoch
            assert one.state.timestamp.batch == alone.state.timestamp.batch
            assert same(result(one), result(alone))


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
    u, _ = begin([EMA("2ba")], t.model, optimizer)
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
