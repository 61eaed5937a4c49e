"""A run in its folder: the lock, the lines of its metrics file, and what it deletes."""

import json
import os
import shutil
import signal

import pytest

from composable import Event
from composable.checkpoint import MismatchError
from composable.checkpoint.files import delete
from composable.loggers import JSONLinesLogger
from composable.resume.lock import LOCK, FolderInUseError
from tests.support.commands import Command
from tests.support.forging import forge
from tests.support.observers import Raise
from tests.support.processes import wait_until
from tests.support.runs import make_trainer

pytestmark = pytest.mark.filterwarnings("ignore::composable.resume.ChangedRunWarning")


def batches_in(path):
    return [json.loads(line)["batch"] for line in path.read_text().splitlines()]


def stop_after(batch):
    return Raise(RuntimeError("stopped"), Event.BATCH_CHECKPOINT, batch)


SCRIPT = """
import signal
from pathlib import Path
from composable import Event
from tests.support.runs import make_trainer
def wait(event, state, logger):
    if event is Event.BATCH_CHECKPOINT and state.timestamp.batch == 2:
        Path("there").touch()
        signal.pause()
make_trainer(save_folder=Path.cwd(), callbacks=[wait]).fit()
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
    with pytest.raises(RuntimeError, match="stopped"):
        make_trainer(loggers=[JSONLinesLogger(path)], callbacks=stop_after(5), **options).fit()
    before = path.read_text()

    make_trainer(loggers=[JSONLinesLogger(path)], **options)

    assert path.read_text() == before
    assert batches_in(path) == [1, 2, 3, 4, 5]


def test_batches_are_logged_once_after_a_stop_before_the_first_checkpoint(tmp_path):
    path, options = tmp_path / "metrics.jsonl", {"save_folder": tmp_path, "autoresume": True}
    path.write_text('{"batch": 0}\n')  # of another run
    logger = JSONLinesLogger(path, append=True, flush_interval=1)
    with pytest.raises(RuntimeError, match="stopped"):
        make_trainer(loggers=[logger], callbacks=stop_after(2), **options).fit()
    assert batches_in(path) == [0, 1, 2]

    make_trainer(loggers=[JSONLinesLogger(path, append=True)], **options).fit()

    assert batches_in(path) == [0, 1, 2, 3, 4, 5, 6]
    assert batches_in(tmp_path / "metrics.1.jsonl") == [1, 2]


# --- what a run deletes: its own checkpoints, whatever a file says ---


KEEP_ONE = {"save_interval": "1ba", "save_num_checkpoints_to_keep": 1}


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


@pytest.mark.parametrize("name", ["../thesis", "{tmp}/thesis", "..", ".", "", "a/../../thesis", 3])
@pytest.mark.parametrize("field", ["kept", "best"])
def test_rejects_paths_as_names_of_checkpoints(field, name, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("text")
    run = tmp_path / "run"
    make_trainer(save_folder=run, max_duration="1ep", **KEEP_ONE).fit()
    if isinstance(name, str):
        name = name.format(tmp=tmp_path)

    def change(state):
        value = [name, name] if field == "kept" else (name, 0.5)
        state["callbacks"]["CheckpointSaver"][field] = value

    forge(run / "ep1-ba3", change)

    message = rf"{field}(/0)? is .*, and must be the name of a checkpoint"
    with pytest.raises(MismatchError, match=f"state/callbacks/CheckpointSaver.*{message}"):
        make_trainer(save_folder=run, autoresume=True, **KEEP_ONE)
    assert (tmp_path / "thesis" / "thesis.tex").exists()


@pytest.mark.parametrize("kind", ["other run", "link", "other files", "no checkpoint", "broken"])
def test_deletes_only_checkpoints_of_the_same_run(kind, tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    make_trainer(save_folder=other, max_duration="1ep").fit()
    make_trainer(save_folder=run, max_duration="1ep", **KEEP_ONE).fit()
    target = run / "ep0-ba1"
    if kind == "other run":
        shutil.copytree(other / "ep1-ba3", target)
    elif kind == "link":
        shutil.copytree(run / "ep1-ba3", tmp_path / "linked")
        target.symlink_to(tmp_path / "linked")
    else:
        shutil.copytree(run / "ep1-ba3", target)
        if kind == "broken":
            (target / "manifest.json").write_text("{}")
        elif kind == "other files":
            (target / "notes.txt").write_text("text")
        else:
            (target / "manifest.json").unlink()
    forge(run / "ep1-ba3", lambda s: s["callbacks"]["CheckpointSaver"].update(kept=["ep0-ba1"]))

    again = {"load_path": run / "ep1-ba3", "save_folder": run, "save_overwrite": True}
    make_trainer(**again, **KEEP_ONE).fit()

    assert os.path.lexists(target)
    assert len(list(target.iterdir())) >= 2


def test_deletes_a_checkpoint_of_the_run(tmp_path):
    trainer = make_trainer(save_folder=tmp_path, max_duration="1ep")
    trainer.fit()

    assert not delete(tmp_path / "ep1-ba3", "another")
    assert delete(tmp_path / "ep1-ba3", trainer._records.run_id)
    assert not delete(tmp_path / "ep1-ba3", trainer._records.run_id)
    assert names(tmp_path) == []
