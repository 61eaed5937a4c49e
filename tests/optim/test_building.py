"""Optimizers follow a surgery."""

import attrs
import pytest
import torch
from torch import nn

from composable import Event
from composable.core.algorithm import Algorithm, Stage
from composable.optim.building import build_optimizers, update_param_groups
from tests.support.tiny import CLASSES, batches, make_trainer, seeded, sgd, weights


def two_layers():
    return seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, CLASSES)))


def with_new_first_layer(model, width=5):
    first = seeded(lambda: nn.Linear(4, width), seed=1)
    return nn.Sequential(first, *list(model)[1:])


def stepped(model, kind=torch.optim.Adam, **options):
    """Build an optimizer that holds state for every parameter."""
    options = {"lr": 0.1, **options}
    groups = [
        {"params": list(model[0].parameters()), "lr": 0.5, "weight_decay": 0.25},
        {"params": list(model[2].parameters())},
    ]
    optimizer = kind(groups, **options)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def ids(parameters):
    return [id(p) for p in parameters]


def test_a_replaced_parameter_takes_the_place_of_the_one_with_its_name():
    before = two_layers()
    optimizer = stepped(before)
    after = with_new_first_layer(before)

    update_param_groups([optimizer], before, after)

    first, second = optimizer.param_groups
    assert ids(first["params"]) == ids(after[0].parameters())
    assert (first["lr"], first["weight_decay"]) == (0.5, 0.25)
    assert ids(second["params"]) == ids(after[2].parameters())


def test_the_order_of_a_group_stays():
    before = two_layers()
    optimizer = stepped(before)
    first = nn.Linear(4, 5)
    first.bias = before[0].bias
    after = nn.Sequential(first, *list(before)[1:])

    update_param_groups([optimizer], before, after)

    assert ids(optimizer.param_groups[0]["params"]) == ids([first.weight, first.bias])


def test_the_state_of_what_left_is_dropped_and_the_rest_is_kept():
    before = two_layers()
    optimizer = stepped(before)
    kept = optimizer.state[before[2].weight]["exp_avg"]
    after = with_new_first_layer(before)

    update_param_groups([optimizer], before, after)

    assert set(ids(optimizer.state)) == set(ids(before[2].parameters()))
    assert optimizer.state[after[2].weight]["exp_avg"] is kept


def test_an_added_parameter_joins_the_group_of_its_neighbours():
    before = two_layers()
    optimizer = stepped(before)
    after = nn.Sequential(nn.Sequential(*before[0:1], nn.Linear(5, 5)), *list(before)[1:])

    update_param_groups([optimizer], before, after)

    assert {id(p) for p in after[0][1].parameters()} <= set(
        ids(optimizer.param_groups[0]["params"])
    )
    assert ids(optimizer.param_groups[1]["params"]) == ids(after[2].parameters())


def test_a_removed_parameter_leaves_its_group():
    before = two_layers()
    optimizer = stepped(before)
    after = nn.Sequential(before[0], nn.ReLU())

    update_param_groups([optimizer], before, after)

    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 0]
    assert set(ids(optimizer.state)) == set(ids(before[0].parameters()))


def test_the_same_parameters_leave_the_optimizer_as_it_is():
    before = two_layers()
    optimizer = stepped(before)
    groups = [ids(group["params"]) for group in optimizer.param_groups]

    update_param_groups([optimizer], before, nn.Sequential(*before))

    assert [ids(group["params"]) for group in optimizer.param_groups] == groups


def test_a_parameter_that_no_optimizer_would_train_is_reported():
    before = nn.Sequential(nn.Linear(4, 5))
    foreign = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)

    with pytest.warns(UserWarning, match=r"the new parameter '0\.weight' is not trained"):
        update_param_groups([foreign], before, nn.Sequential(nn.Linear(4, 5, bias=False)))


def test_a_frozen_layer_that_is_replaced_stays_out_of_the_optimizer_of_another():
    before = two_layers()
    optimizer = torch.optim.SGD(before[2].parameters(), lr=0.1)
    after = nn.Sequential(before[0], before[1], nn.Linear(5, CLASSES, bias=False))

    update_param_groups([optimizer], before, after)

    assert ids(optimizer.param_groups[0]["params"]) == ids(after[2].parameters())


@attrs.frozen(repr=False)
class ReplaceFirst(Algorithm):
    """Replace the first layer at an event."""

    at: Event
    events = frozenset({Event.INIT, Event.AFTER_LOAD, Event.FIT_START, Event.EPOCH_START})
    stage = Stage.SURGERY
    writes = frozenset({"model"})

    def match(self, event, state):
        return event is self.at

    def apply(self, event, state):
        return state.evolve(model=with_new_first_layer(state.model))


@pytest.mark.parametrize(
    "event", [Event.INIT, Event.AFTER_LOAD, Event.FIT_START, Event.EPOCH_START]
)
def test_the_trainer_trains_the_parameters_of_a_surgery(event):
    model = two_layers()
    optimizer = stepped(model, torch.optim.SGD, momentum=0.9)
    start = weights(with_new_first_layer(model))

    trainer = make_trainer(
        model, optimizers=optimizer, algorithms=[ReplaceFirst(event)], max_duration="1ep"
    )
    trainer.fit()

    after = weights(trainer.state.model)
    assert not torch.equal(after["0.weight"], start["0.weight"])
    assert ids(optimizer.param_groups[0]["params"]) == ids(trainer.state.model[0].parameters())
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_factory_is_called_after_surgery():
    trainer = make_trainer(two_layers(), optimizers=sgd, algorithms=[ReplaceFirst(Event.INIT)])

    (optimizer,) = trainer.state.optimizers
    assert ids(optimizer.param_groups[0]["params"]) == ids(trainer.state.model.parameters())


def test_optimizers_come_in_the_order_given():
    model = two_layers()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)

    built = build_optimizers([first, lambda _: torch.optim.Adam(model[2].parameters())], model)

    assert built[0] is first
    assert type(built[1]) is torch.optim.Adam


def test_nothing_given_is_nothing_built():
    assert build_optimizers([], two_layers()) == ()
    assert make_trainer(optimizers=None).predict(batches())[0].shape == (4, CLASSES)
