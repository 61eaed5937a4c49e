"""What the tests of surgeries in the loop share."""

import torch
from torch import nn

from composable import Event, State
from tests.support.data import batches
from tests.support.models import CLASSES, same, seeded, weights
from tests.support.runs import make_trainer


def convolutional():
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Conv2d(4, 4, 3, stride=2),
            nn.Flatten(),
            nn.LayerNorm(4),
            nn.Linear(4, CLASSES),
        )
    )


def images():
    return [(x.reshape(4, 1, 6, 6), y) for x, y in batches(12, features=36)]


def check_surgery(algorithm, operate):
    """Check that an algorithm is a function, once, at the start."""
    ours = make_trainer(convolutional(), algorithms=[algorithm], train_dataloader=images())
    theirs = make_trainer(operate(convolutional()), train_dataloader=images())

    assert repr(ours.state.model) == repr(theirs.state.model)
    assert repr(ours.state.model) != repr(convolutional())
    ours.fit(), theirs.fit()
    assert same(weights(ours.state.model), weights(theirs.state.model))
    plain = make_trainer(convolutional(), train_dataloader=images()).fit().model
    outputs = [model.eval()(images()[0][0]) for model in (ours.state.model, plain)]
    assert not torch.equal(*outputs)

    assert algorithm.events == {Event.INIT}
    state = State(convolutional())
    assert all(algorithm(event, state) is state for event in Event if event is not Event.INIT)
