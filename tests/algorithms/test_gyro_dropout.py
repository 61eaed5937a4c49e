"""Gyro dropout in the loop: the function's model over the batches of the run, from its own key."""

import pytest
from torch import nn

from composable.algorithms import GyroDropout
from tests.support.data import batches, stream
from tests.support.runs import make_trainer

OPTIONS = {"sigma": 4, "tau": 2}


@pytest.mark.parametrize(("duration", "stay"), [("2ep", 3), ("6ba", 3), ("12ba", 6)])
def test_masks_are_spread_over_the_batches_of_the_run(duration, stay):
    trainer = make_trainer(
        nn.Sequential(nn.Dropout(), nn.Linear(4, 3)),
        algorithms=[GyroDropout(**OPTIONS)],
        max_duration=duration,
    )

    assert trainer.state.model[0].stay == stay


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_duration": None}, "max_duration='None' must be in epochs or batches"),
        ({"max_duration": "1h"}, "must be in epochs or batches, over which GyroDropout"),
        ({"train_dataloader": stream()}, "because the loader has no length"),
    ],
)
def test_rejects_runs_of_unknown_length(changes, message):
    arguments = {"train_dataloader": batches(12), **changes}
    with pytest.raises(ValueError, match=message):
        make_trainer(nn.Sequential(nn.Dropout()), algorithms=[GyroDropout()], **arguments)
