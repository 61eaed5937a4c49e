"""Optimizers follow a surgery."""

import attrs
import pytest
import torch
from torch import nn

from composable import Event
from composable.core.algorithm import Algorithm, Stage
from composable.optim.building import update_param_groups
from tests.support.models import CLASSES, seeded, weights
from tests.support.runs import make_trainer, sgd


def two_layers():
    return seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, CLASSES)))


def new_first_layer(model):
    first = seeded(lambda: nn.Linear(4, 5), seed=1)
    return nn.Sequential(first, *list(model)[1:])


def new_first_weight(model):
    first = nn.Linear(4, 5)
    first.bias = model[0].bias
    return nn.Sequential(first, *list(model)[1:])


def added_layer(model):
    return nn.Sequential(nn.Sequential(model[0], nn.Linear(5, 5)), *list(model)[1:])


def stepped(model, kind=torch.optim.Adam, **options):
    """Build an optimizer that holds state for every parameter."""
    groups = [
        {"params": list(model[0].parameters()), "lr": 0.5, "weight_decay": 0.25},
        {"params": list(model[2].parameters())},
    ]
    optimizer = kind(groups, lr=0.1, **options)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def ids(parameters):
    return [id(p) for p in parameters]


@pytest.mark.parametrize(
    ("change", "groups"),
    [
        (new_first_layer, lambda m: (m[0].parameters(), m[2].parameters())),
        (new_first_weight, lambda m: ([m[0].weight, m[0].bias], m[2].parameters())),
        (
            added_layer,
            lambda m: ([*m[0][0].parameters(), *m[0][1].parameters()], m[2].parameters()),
        ),
        (lambda m: nn.Sequential(m[0], nn.ReLU()), lambda m: (m[0].parameters(), [])),
        (lambda m: nn.Sequential(*m), lambda m: (m[0].parameters(), m[2].parameters())),
    ],
)
def test_groups_have_the_parameters_of_the_new_model(change, groups):
    before = two_layers()
    optimizer = stepped(before)
    state = {id(p): held["exp_avg"] for p, held in optimizer.state.items()}
    after = change(before)

    update_param_groups([optimizer], before, after)

    first, second = optimizer.param_groups
    assert [sorted(ids(g["params"])) for g in (first, second)] == [
        sorted(ids(group)) for group in groups(after)
    ]
    if change is not added_layer:  # a new parameter takes the place of the one of its name
        assert [ids(g["params"]) for g in (first, second)] == [ids(g) for g in groups(after)]
    assert (first["lr"], first["weight_decay"]) == (0.5, 0.25)
    kept = {id(p) for p in after.parameters()} & state.keys()
    assert {id(p): held["exp_avg"] for p, held in optimizer.state.items()} == {
        p: state[p] for p in kept
    }


def test_warns_of_a_parameter_that_no_optimizer_trains():
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
        return state.evolve(model=new_first_layer(state.model))


@pytest.mark.parametrize("event", sorted(ReplaceFirst.events, key=str))
def test_the_trainer_trains_the_parameters_of_a_surgery(event):
    model = two_layers()
    optimizer = stepped(model, torch.optim.SGD, momentum=0.9)
    start = weights(new_first_layer(model))

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
