"""Channels-last in the loop does what the function does, once, after all surgery."""

import torch

from composable import Event, Stage, State
from composable.algorithms import ChannelsLast
from composable.functional import channels_last
from tests.support.surgery import convolutional, images
from tests.support.tiny import make_trainer, same, sgd, weights


def test_training_is_that_of_the_model_of_the_function():
    ours = make_trainer(
        convolutional(), algorithms=[ChannelsLast()], train_dataloader=images()
    ).fit()
    theirs = make_trainer(channels_last(convolutional()), train_dataloader=images()).fit()

    assert ours.model[4].weight.is_contiguous(memory_format=torch.channels_last)
    assert same(weights(ours.model), weights(theirs.model))


def test_an_optimizer_that_was_there_follows():
    model = convolutional()
    optimizer = sgd(model.parameters())

    trainer = make_trainer(
        model, algorithms=[ChannelsLast()], train_dataloader=images(), optimizers=optimizer
    )

    held = {id(p) for p in optimizer.param_groups[0]["params"]}
    assert held == {id(p) for p in trainer.state.model.parameters()}


def test_it_acts_once_after_the_replacement_of_modules():
    state = State(convolutional())

    assert ChannelsLast().stage is Stage.LAYOUT
    assert all(ChannelsLast()(event, state) is state for event in Event if event is not Event.INIT)
