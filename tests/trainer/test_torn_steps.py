"""A call of `fit` after an exception within a step."""

import pytest

from composable import Event
from composable.trainer.run import TornStepWarning
from tests.support.tiny import Watch, make_trainer


class Failed(Exception):
    pass


def fails_once(event):
    failed = []

    def read(state):
        if state.timestamp.batch >= 1 and not failed:
            failed.append(True)
            raise Failed

    return Watch(event, read=read)


@pytest.mark.parametrize("event", [Event.AFTER_FORWARD, Event.AFTER_OPTIMIZER_STEP])
def test_warns_that_the_batch_is_trained_on_again(event):
    trainer = make_trainer(callbacks=[fails_once(event)])
    with pytest.raises(Failed):
        trainer.fit()

    with pytest.warns(TornStepWarning, match="the step of batch 1, and the batch is trained on"):
        trainer.fit()
    assert trainer.state.timestamp.batch == 6


@pytest.mark.parametrize("event", [Event.BATCH_CHECKPOINT, Event.BEFORE_DATALOADER])
def test_continues_exactly_between_two_steps(event):
    trainer, whole = make_trainer(callbacks=[fails_once(event)]), make_trainer()
    with pytest.raises(Failed):
        trainer.fit()

    assert trainer.fit().model.weight.equal(whole.fit().model.weight)
