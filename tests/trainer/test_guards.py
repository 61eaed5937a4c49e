"""Losses that are not finite, signals, and workers that die."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from composable import Callback, Event
from composable.checkpoint import files
from composable.data import dead_workers
from composable.data.dead_workers import explain_dead_worker
from composable.loggers import InMemoryLogger
from composable.trainer.guards import NonFiniteLossError, NonFiniteLossWarning
from tests.support.commands import Command
from tests.support.data import batches
from tests.support.models import same, seeded, weights
from tests.support.observers import Watch
from tests.support.runs import make_trainer, trained
from tests.support.signals import signals_set

# --- losses ---


def poisoned(bad=(3,), value=float("nan"), count=8):
    """Return batches of which some have an input that is not finite."""
    data = batches([4] * count)
    for number in bad:
        data[number][0][0, 0] = value
    return data


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nonfinite_loss_ends_the_run_before_the_update(value):
    data = poisoned(value=value)
    trainer = make_trainer(train_dataloader=data, max_duration="1ep")

    with pytest.raises(NonFiniteLossError, match=r"the loss of batch 3 was (nan|-?inf)") as caught:
        trainer.fit()

    assert caught.value.batch == 3
    assert trainer.state.timestamp.batch == 3
    assert same(weights(trainer.state.model), trained(train_dataloader=data, max_duration="3ba"))


class Norm(nn.Module):
    """A model with statistics, which a forward pass changes."""

    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.layer(self.norm(inputs))


def without(data, *bad):
    """Return the weights after an epoch without some of the batches."""
    kept = [batch for i, batch in enumerate(data) if i not in bad]
    return trained(seeded(Norm), train_dataloader=kept, max_duration="1ep")


def test_skipped_batches_leave_no_trace():
    def count(event, state):
        if event is not Event.AFTER_LOSS:
            return state
        return state.remember("counts", state.memory.get("counts", 0) + 1)

    data, memory = poisoned((3, 5)), InMemoryLogger()
    options = {"algorithms": [count], "loggers": [memory], "max_duration": "1ep"}
    trainer = make_trainer(seeded(Norm), data, nonfinite_loss="skip", **options)

    with pytest.warns(NonFiniteLossWarning, match="the loss of batch [35] was nan"):
        trainer.fit()

    assert same(weights(trainer.state.model), without(data, 3, 5))
    assert trainer.state.memory["counts"] == 6
    assert trainer.state.timestamp.batch == 8
    assert memory.series("nonfinite/skipped") == [1, 2]
    stamps = [stamp.batch for stamp, values in memory.records if "nonfinite/skipped" in values]
    assert stamps == [3, 5]


def test_skipping_many_consecutive_batches_is_an_error():
    trainer = make_trainer(
        train_dataloader=poisoned(range(20), count=20), max_duration="1ep", nonfinite_loss="skip"
    )

    with (
        pytest.warns(NonFiniteLossWarning),
        pytest.raises(NonFiniteLossError, match="losses of 10 consecutive batches were not finite"),
    ):
        trainer.fit()


class BreaksWeights:
    """A loss that is finite at every batch, and whose gradient is NaN at some."""

    def __init__(self, *bad):
        self.bad, self.calls = bad, 0

    def __call__(self, outputs, targets):
        loss = nn.functional.cross_entropy(outputs, targets)
        self.calls += 1
        return loss + (outputs * 0).sum().sqrt() if self.calls - 1 in self.bad else loss


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_loss_that_is_nan_since_the_weights_are_names_the_weights(policy):
    options = {"max_duration": "1ep", "nonfinite_loss": policy, "loss_fn": BreaksWeights(2)}

    with pytest.raises(NonFiniteLossError) as caught:
        make_trainer(nn.Linear(4, 3), batches([4] * 8), **options).fit()

    assert str(caught.value).startswith(
        "the loss of batch 3 was nan, because weights of the model were not finite before it, such "
        "as 'weight': the step of an earlier batch, probably batch 2, made them so"
    )
    assert caught.value.batch == 2


def test_weights_that_are_nan_from_the_start_are_named():
    model = nn.Linear(4, 3)
    nn.init.constant_(model.bias, torch.nan)

    with pytest.raises(NonFiniteLossError, match=r"when training began, such as 'bias'"):
        make_trainer(model, batches([4] * 8)).fit()


def test_rollback_skips_the_batch_whose_step_broke_the_weights(tmp_path):
    model, data = nn.Linear(4, 3), batches([4] * 8)
    options = {"loss_fn": BreaksWeights(4), "save_folder": tmp_path, "save_interval": "2ba"}
    trainer = make_trainer(model, data, max_duration="1ep", nonfinite_loss="rollback", **options)

    with pytest.warns(NonFiniteLossWarning, match="batch 4 was nan: the batch is skipped"):
        trainer.fit()

    assert all(value.isfinite().all() for value in model.state_dict().values())


def test_ignored_nonfinite_loss():
    trainer = make_trainer(train_dataloader=poisoned(), max_duration="1ep", nonfinite_loss="ignore")

    assert trainer.fit().timestamp.batch == 8


def test_rollback_resumes_from_the_last_checkpoint_without_the_batch(tmp_path):
    data, memory = poisoned((5,)), InMemoryLogger()
    seen = Watch(Event.BATCH_START, read=lambda state: state.timestamp.batch)
    options = {"save_folder": tmp_path, "save_interval": "2ba", "max_duration": "1ep"}
    trainer = make_trainer(
        seeded(Norm), data, nonfinite_loss="rollback", loggers=memory, callbacks=seen, **options
    )

    with pytest.warns(NonFiniteLossWarning, match="batch 5"):
        trainer.fit()

    assert seen.values == [0, 1, 2, 3, 4, 5, 4, 5, 6, 7]
    assert same(weights(trainer.state.model), without(data, 5))
    assert memory.series("nonfinite/rolled_back") == [1]


def test_rollback_without_a_checkpoint_is_an_error(tmp_path):
    trainer = make_trainer(
        train_dataloader=poisoned((0,)), nonfinite_loss="rollback", save_folder=tmp_path
    )

    with pytest.raises(NonFiniteLossError) as caught:
        trainer.fit()

    assert "no checkpoint to roll back to" in "\n".join(caught.value.__notes__)


# --- signals ---


class Sends(Callback):
    """Sends signals to its own process in the middle of a batch."""

    def __init__(self, number, batch=2, times=1):
        self.number, self.batch, self.times = number, batch, times

    def after_forward(self, state, logger):
        if state.timestamp.batch == self.batch:
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)
                time.sleep(0.01)


SIGNALS = [
    pytest.param(signal.SIGTERM, SystemExit, id="SIGTERM"),
    pytest.param(signal.SIGINT, KeyboardInterrupt, id="SIGINT"),
]
posix = pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")


@pytest.fixture
def signals():
    with signals_set():
        yield


@posix
@pytest.mark.parametrize(("number", "error"), SIGNALS)
def test_signal_ends_and_saves_the_run_after_the_batch(number, error, tmp_path, signals, logged):
    options = {"save_folder": tmp_path, "save_interval": "1ep"}
    trainer = make_trainer(callbacks=[Sends(number)], **options)

    with pytest.raises(error) as caught:
        trainer.fit()

    if error is SystemExit:
        assert caught.value.code == 143
    assert "finishing this batch and saving a checkpoint" in logged[0]
    assert trainer.state.timestamp.batch == 3
    whole, _ = files.find(tmp_path)
    assert [found.manifest.batch for found in whole] == [3]
    again = make_trainer(callbacks=[Sends(number, -1)], autoresume=True, **options)
    assert same(weights(again.fit().model), trained())
    assert same(weights(trainer.fit().model), trained())  # in the same process


@posix
@pytest.mark.parametrize(("number", "error"), SIGNALS)
def test_second_signal_ends_the_run_at_once(number, error, tmp_path, signals):
    trainer = make_trainer(callbacks=[Sends(number, times=2)], save_folder=tmp_path)

    with pytest.raises(error):
        trainer.fit()

    assert trainer.state.timestamp.batch == 2
    assert files.find(tmp_path) == ([], [])


@posix
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_handlers_are_restored_and_ignored_signals_stay_ignored(number, logged):
    def own(number, frame):
        pass

    before = signal.signal(number, own)
    try:
        with pytest.raises((SystemExit, KeyboardInterrupt)):
            make_trainer(callbacks=[Sends(number)]).fit()
        assert "saving nothing, since there is no save_folder" in logged[0]
        assert signal.signal(number, signal.SIG_IGN) is own
        state = make_trainer(callbacks=[Sends(number)]).fit()
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
    assert number == signal.SIGINT or state.timestamp.batch == 6


@posix
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_signal_in_a_worker_process(number, status):
    ended = []

    class Forks(Callback):
        def batch_start(self, state, logger):
            if state.timestamp.batch:
                return
            ready, told = os.pipe()
            child = os.fork()
            if not child:
                os.write(told, b"!")
                time.sleep(0.5)
                os._exit(0)
            os.read(ready, 1)
            os.kill(child, number)
            ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    state = make_trainer(callbacks=[Forks()]).fit()

    assert ended == [status]
    assert state.timestamp.batch == 6


# --- workers ---


DYING = """
    import os
    import torch
    from composable import Callback
    from tests.support.models import linear
    from tests.support.runs import make_trainer

    class Dies(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            if i == 5:
                os._exit(1)
            return torch.zeros(4), 0

    class Closes(Callback):
        def close(self):
            print("closed")

    if __name__ == "__main__":
        loader = torch.utils.data.DataLoader(Dies(), batch_size=2, num_workers=1)
        make_trainer(linear(), train_dataloader=loader, callbacks=[Closes()]).fit()
"""


def test_dead_worker_ends_the_run_and_callbacks_are_closed(tmp_path):
    # In a process of its own: the signal of a dead worker may come at any line of the test runner.
    status, output, error = Command(tmp_path, textwrap.dedent(DYING)).finish()

    assert status == 1
    # Which of the two depends on what comes first: the signal, or the end of the connection.
    reports = ("DataLoader worker (pid", "a worker process of the loader died")
    assert any(report in error for report in reports)
    assert output.split() == ["closed"]


# A worker process that died is explained, and no other error of a loader is.


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
