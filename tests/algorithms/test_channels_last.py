"""Channels-last in the loop does what the function does, once, after all surgery."""

from composable.algorithms import ChannelsLast
from tests.support.runs import make_trainer, sgd
from tests.support.surgery import convolutional, images


def test_existing_optimizer_holds_the_new_parameters():
    model = convolutional()
    optimizer = sgd(model.parameters())

    trainer = make_trainer(
        model, algorithms=[ChannelsLast()], train_dataloader=images(), optimizers=optimizer
    )

    held = {id(p) for p in optimizer.param_groups[0]["params"]}
    assert held == {id(p) for p in trainer.state.model.parameters()}
