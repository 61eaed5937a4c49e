"""A batch that is saved twice counts once among the checkpoints to keep."""

import pytest
import torch

from composable import Event
from tests.support.data import batches
from tests.support.observers import Raise
from tests.support.runs import make_trainer

KEEP_TWO = {"save_interval": "1ba", "save_num_checkpoints_to_keep": 2}
AFTER_EPOCH = ["ep1-ba5", "ep2-ba6"]


def saved(folder):
    return sorted(path.name for path in folder.glob("ep*"))


@pytest.mark.parametrize("background", [False, True])
def test_two_batches_are_kept(background, tmp_path):
    make_trainer(save_folder=tmp_path, save_in_background=background, **KEEP_TWO).fit()

    assert saved(tmp_path) == AFTER_EPOCH


def test_two_batches_are_kept_after_resuming_between_the_two_saves(tmp_path):
    stop = Raise(KeyboardInterrupt(), Event.EPOCH_END, batch=6)
    with pytest.raises(KeyboardInterrupt):
        make_trainer(save_folder=tmp_path, callbacks=[stop], **KEEP_TWO).fit()

    make_trainer(save_folder=tmp_path, autoresume=True, **KEEP_TWO).fit()

    assert saved(tmp_path) == AFTER_EPOCH


def test_best_checkpoint_is_not_replaced(tmp_path):
    make_trainer(
        save_folder=tmp_path,
        **KEEP_TWO,
        eval_dataloader=batches([4]),
        eval_interval="6ba",
        metrics={"score": lambda outputs, targets: torch.ones(len(targets))},
        save_best="eval/score",
        save_best_mode="max",
    ).fit()

    assert saved(tmp_path) == ["ep1-ba5", "ep1-ba6", "ep2-ba6"]
