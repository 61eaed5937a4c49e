"""What belongs to a run in its folder: the lock, and the lines of its metrics file."""

import json
import os
import signal

import pytest

from composable import Callback
from composable.loggers import JSONLinesLogger
from composable.resume.lock import LOCK, FolderInUseError
from tests.support.commands import Command
from tests.support.processes import wait_until
from tests.support.runs import make_trainer

pytestmark = pytest.mark.filterwarnings("ignore::composable.resume.ChangedRunWarning")


def batches_in(path):
    return [json.loads(line)["batch"] for line in path.read_text().splitlines()]


class At(Callback):
    """Calls a function after the log of a batch."""

    def __init__(self, batch, do):
        self.batch, self.do = batch, do

    def batch_checkpoint(self, state, logger):
        if state.timestamp.batch == self.batch:
            self.do()


class Stopped(Exception):
    pass


def stop():
    raise Stopped


SCRIPT = """
import signal
from pathlib import Path
from tests.support.runs import make_trainer
from tests.trainer.test_run_folder import At
def wait():
    Path("there").touch()
    signal.pause()
make_trainer(save_folder=Path.cwd(), callbacks=[At(2, wait)]).fit()
"""


@pytest.fixture
def start(tmp_path):
    """Return a function that trains in another process up to a batch, where it waits."""
    started = []

    def begin():
        started.append(Command(tmp_path, SCRIPT))
        wait_until((tmp_path / "there").exists)
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.join()


def test_second_process_is_refused_while_the_first_trains(start, tmp_path):
    built_before = make_trainer(save_folder=tmp_path, autoresume=True)
    pid = start().pid

    for train in (built_before.fit, lambda: make_trainer(save_folder=tmp_path, autoresume=True)):
        with pytest.raises(FolderInUseError, match=f"is in use: process {pid} on .* trains in it"):
            train()


def test_lock_of_a_killed_process_is_free(start, tmp_path):
    built_before = make_trainer(save_folder=tmp_path, autoresume=True)
    child = start()
    os.kill(child.pid, signal.SIGSTOP)
    child_pid = json.loads((tmp_path / LOCK).read_text())["pid"]
    child.kill()
    child.join()

    with pytest.raises(FolderInUseError, match=f"process {child_pid} .* after this Trainer was"):
        built_before.fit()
    assert make_trainer(save_folder=tmp_path, autoresume=True).fit().timestamp.batch == 6


def test_trainers_of_one_process_share_the_lock(tmp_path):
    options = {"save_folder": tmp_path, "autoresume": True, "max_duration": "1ep"}
    first = make_trainer(**options)
    first.fit()
    make_trainer(**options).fit()

    assert first.fit(duration="1ep").timestamp.batch == 6


@pytest.mark.parametrize("mode", [{}, {"append": True}])
def test_lines_of_another_file_are_kept(mode, tmp_path):
    path, options = tmp_path / "metrics.jsonl", {"save_folder": tmp_path, "autoresume": True}
    make_trainer(loggers=[JSONLinesLogger(path)], max_duration="1ep", **options).fit()
    other = '{"batch": 7}\n' * 200
    path.write_text(other)

    with pytest.raises(Exception, match="has other lines than when the checkpoint was saved"):
        make_trainer(loggers=[JSONLinesLogger(path, **mode)], **options)

    assert path.read_text() == other


@pytest.mark.parametrize("mode", [{}, {"append": True}, {"overwrite": True}])
def test_own_lines_are_continued_in_every_mode(mode, tmp_path):
    path, options = tmp_path / "metrics.jsonl", {"save_folder": tmp_path, "autoresume": True}
    make_trainer(loggers=[JSONLinesLogger(path, **mode)], max_duration="1ep", **options).fit()

    make_trainer(loggers=[JSONLinesLogger(path, **mode)], **options).fit()

    assert batches_in(path) == [1, 2, 3, 4, 5, 6]


def test_building_a_trainer_does_not_truncate(tmp_path):
    path, options = tmp_path / "metrics.jsonl", {"save_folder": tmp_path, "autoresume": True}
    with pytest.raises(Stopped):
        make_trainer(loggers=[JSONLinesLogger(path)], callbacks=[At(5, stop)], **options).fit()
    before = path.read_text()

    make_trainer(loggers=[JSONLinesLogger(path)], **options)

    assert path.read_text() == before
    assert batches_in(path) == [1, 2, 3, 4, 5]


def test_batches_are_logged_once_after_a_stop_before_the_first_checkpoint(tmp_path):
    path, options = tmp_path / "metrics.jsonl", {"save_folder": tmp_path, "autoresume": True}
    path.write_text('{"batch": 0}\n')  # of another run
    logger = JSONLinesLogger(path, append=True, flush_interval=1)
    with pytest.raises(Stopped):
        make_trainer(loggers=[logger], callbacks=[At(2, stop)], **options).fit()
    assert batches_in(path) == [0, 1, 2]

    make_trainer(loggers=[JSONLinesLogger(path, append=True)], **options).fit()

    assert batches_in(path) == [0, 1, 2, 3, 4, 5, 6]
    assert batches_in(tmp_path / "metrics.1.jsonl") == [1, 2]
