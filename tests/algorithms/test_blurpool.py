"""BlurPool in the loop does what the function does, once, before the optimizers are made."""

import pytest
import torch
from torch import nn

from composable import Event, State
from composable.algorithms import BlurPool
from composable.functional import blurpool
from tests.helpers import CLASSES, batches, make_trainer, same, seeded, weights


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


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"min_channels": -1}, ValueError, "min_channels=-1 must be at least 0"),
        ({"min_channels": 1.5}, TypeError, "min_channels=1.5 must be an integer, at least 0"),
        ({"min_channels": True}, TypeError, "min_channels=True must be an integer"),
        ({"replace_convs": 1}, TypeError, "replace_convs=1 must be True or False"),
        ({"replace_maxpools": None}, TypeError, "replace_maxpools=None must be True or False"),
        (
            {"replace_convs": False, "replace_maxpools": False},
            ValueError,
            "replace_convs=False and replace_maxpools=False leave nothing to replace",
        ),
        ({"blur_first": "yes"}, TypeError, "blur_first='yes' must be True or False"),
    ],
)
def test_hyperparameters_are_checked(options, error, message):
    with pytest.raises(error, match=message):
        BlurPool(**options)
