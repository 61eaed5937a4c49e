"""A signal saves a checkpoint of a run that a launcher has started, with workers of a loader."""

import os
import signal
from pathlib import Path

import pytest

from composable.checkpoint import find
from tests.distributed.test_launch import start, wait_for
from tests.support.processes import wait_until

SCRIPT = """
import sys
import time
from functools import partial
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from composable import Event, Trainer

slow = sys.argv[1]


class Examples(Dataset):
    def __len__(self):
        return 8000

    def __getitem__(self, i):
        if slow == "data":
            time.sleep(0.3)
        return torch.ones(4), torch.tensor(0)


def pause(event, state, logger):
    if event is Event.AFTER_FORWARD:
        Path("training").touch()
        if slow == "step":
            time.sleep(1.5)


Trainer(
    model=torch.nn.Linear(4, 2),
    loss_fn=torch.nn.functional.cross_entropy,
    optimizers=partial(torch.optim.SGD, lr=0.1),
    train_dataloader=DataLoader(Examples(), batch_size=4, num_workers=1),
    max_duration="1ep",
    callbacks=[pause],
    save_folder="run",
    save_interval="1ep",
    progress_bar=False,
).fit()
"""


def children(pid):
    """Return the processes that a process has started, and those that they have started."""
    own = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [*map(int, own), *(grandchild for child in own for grandchild in children(child))]


@pytest.mark.parametrize(
    ("sent_to", "slow"),
    [
        pytest.param("launcher", "data", marks=pytest.mark.campaign),
        ("all processes", "step"),
        pytest.param("all processes", "data", marks=pytest.mark.campaign),
    ],
)
def test_preempted_run_saves_a_checkpoint(sent_to, slow, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    process = start(tmp_path, "-n", 2, "train.py", slow)
    wait_for(tmp_path / "training")
    if sent_to == "all processes":  # as by a scheduler; the launcher sends the signal once more
        processes = children(process.pid)
        assert len(processes) == 4  # two ranks, each with a worker
        for pid in sorted(processes):  # a rank before its worker
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda: "finishing this batch" in process.output(2))
    process.terminate()
    status, _, errors = process.finish()
    assert status == 143, errors
    assert len(find(tmp_path / "run")[0]) == 1, errors
