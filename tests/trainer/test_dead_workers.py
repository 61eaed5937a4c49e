"""Errors of loaders: those of a worker process that died are explained, all others are not."""

import gc
import signal
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader

from composable.data import dead_workers
from composable.data.dead_workers import explain_dead_worker
from tests.support.runs import make_trainer


def is_explained(error):
    return "a worker process of the loader died" in "\n".join(getattr(error, "__notes__", []))


class Raising(torch.utils.data.Dataset):
    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 4

    def __getitem__(self, i):
        raise self.error


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shapes differ"),
        RuntimeError("my DataLoader worker failed"),
        EOFError("file ended"),
        ConnectionResetError("the database closed the connection"),
    ],
    ids=repr,
)
def test_error_of_dataset_is_not_explained(error, workers, monkeypatch):
    # PyTorch waits so long for a worker whose loader is garbage: the next collection would.
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    loader = DataLoader(Raising(error), num_workers=workers)
    with pytest.raises(type(error)) as caught:
        make_trainer(train_dataloader=loader).fit()
    assert not is_explained(caught.value)
    del caught
    error.__traceback__ = None
    gc.collect()


@pytest.mark.parametrize(
    "message",
    [
        "DataLoader worker (pid 12) is killed by signal: Killed.",
        "DataLoader worker (pid(s) 12, 13) exited unexpectedly",
    ],
)
def test_report_of_torch_is_explained(message):
    error = RuntimeError(message)
    explain_dead_worker(error, [])
    assert is_explained(error)


@pytest.mark.parametrize("kind", [ConnectionResetError, EOFError])
@pytest.mark.parametrize("dies", [True, False])
def test_end_of_connection_is_explained_if_a_worker_dies(kind, dies, monkeypatch):
    if not dies:  # there is nothing to wait for
        monkeypatch.setattr(dead_workers, "_SECONDS", 0.2)
    error = kind("cut")
    code = f"import os, time; time.sleep({0.3 if dies else 60}); os._exit(1)"
    worker = subprocess.Popen([sys.executable, "-c", code])
    torch._C._set_worker_pids(worker.pid, (worker.pid,))
    try:
        explain_dead_worker(error, DataLoader([0], num_workers=1))
    finally:
        torch._C._remove_worker_pids(worker.pid)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    assert is_explained(error) is dies
