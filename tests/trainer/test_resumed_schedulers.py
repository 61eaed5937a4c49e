"""A run with a PyTorch scheduler that resumes after the last batch of an epoch."""

from functools import partial

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from composable import Event
from tests.support.observers import Raise
from tests.support.runs import make_trainer

SCHEDULERS = {"schedulers": partial(StepLR, step_size=1)}


@pytest.mark.parametrize("event", [Event.BATCH_CHECKPOINT, Event.AFTER_SAVE, Event.EPOCH_END])
def test_scheduler_steps_without_a_warning(event, tmp_path):
    options = {**SCHEDULERS, "save_folder": tmp_path, "save_interval": "3ba"}
    stop = Raise(KeyboardInterrupt(), event, batch=3)
    with pytest.raises(KeyboardInterrupt):
        make_trainer(callbacks=stop, **options).fit()

    state = make_trainer(autoresume=True, **options).fit()  # a warning is an error in a test

    whole = make_trainer(**SCHEDULERS).fit()
    assert torch.equal(state.model.weight, whole.model.weight)
