"""BlurPool in the loop does what the function does, once, before the optimizers are made."""

import pytest
import torch
from torch import nn

from composable import Event, State
from composable.algorithms import BlurPool
from composable.functional import blurpool
from tests.support.tiny import CLASSES, batches, make_trainer, same, seeded, weights


def convolutional():
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 4, 3, stride=2),
            nn.Flatten(),
            nn.Linear(4, CLASSES),
        )
    )


def images():
    return [(x.reshape(4, 1, 6, 6), y) for x, y in batches(features=36)]


@pytest.mark.parametrize(
    "options",
    [
        {"min_channels": 1},
        {"min_channels": 1, "blur_first": False},
        {"replace_convs": False},
        {"replace_maxpools": False, "min_channels": 4},
    ],
)
def test_the_model_is_that_of_the_function(options):
    x = images()[0][0]

    trainer = make_trainer(
        convolutional(), algorithms=[BlurPool(**options)], train_dataloader=images()
    )

    expected = blurpool(convolutional(), **options)
    ours = trainer.state.model
    assert [type(layer) for layer in ours] == [type(layer) for layer in expected]
    assert torch.equal(ours(x), expected(x))


def test_training_is_that_of_the_model_of_the_function():
    ours = make_trainer(
        convolutional(), algorithms=[BlurPool(min_channels=1)], train_dataloader=images()
    )
    theirs = make_trainer(blurpool(convolutional(), min_channels=1), train_dataloader=images())
    ours.fit(), theirs.fit()

    assert same(weights(ours.state.model), weights(theirs.state.model))


def test_it_acts_once_at_the_start():
    blur = BlurPool(min_channels=1)
    state = State(convolutional())

    assert blur.events == {Event.INIT}
    assert all(blur(event, state) is state for event in Event if event is not Event.INIT)
