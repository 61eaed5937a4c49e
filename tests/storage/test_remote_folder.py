"""Runs in folders of an object store: what is copied there, and continued elsewhere."""

import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from composable._support.object_stores import OPEN
from composable.checkpoint import (
    CheckpointError,
    CheckpointExistsError,
    MissingCheckpointError,
    UnwritableCheckpointError,
    verify,
    write,
)
from composable.checkpoint.files import find
from composable.loggers import CSVLogger, JSONLinesLogger
from composable.resume import BrokenCheckpointWarning
from composable.resume.best import Best, check_best
from composable.resume.manager import UnsavedCheckpointWarning
from composable.resume.select import first_valid
from composable.storage import RemoteFolder, TakenOverError
from composable.storage.copies import local
from tests.support.campaign import drawn
from tests.support.data import shuffling_loader
from tests.support.object_store import BUCKET, elsewhere, lost_at, machine
from tests.support.remote_run import URL, run, same, saved


def rows(text: bytes) -> list[bytes]:
    return text.splitlines()


def test_a_run_continues_on_a_machine_with_an_empty_disk(server, whole, monkeypatch, tmp_path):
    logs = [f"{URL}/log.jsonl", f"s3://{BUCKET}/logs/log.jsonl"]

    def loggers():
        return [*map(JSONLinesLogger, logs), CSVLogger(f"{URL}/log.csv")]

    with pytest.raises(KeyError):
        run(URL, stop=7, loggers=loggers()).fit()
    assert saved(server) == [4, 6]
    machine(monkeypatch, tmp_path / "machine-2")
    trainer = run(URL, loggers=loggers())
    assert trainer.state.timestamp.batch == 6
    trainer.fit()
    assert same(trainer, whole)
    assert saved(server) == [8, 9]
    read = server.files.cat_file
    steps = rows((whole._options.save_folder / "steps.jsonl").read_bytes())
    assert rows(read(f"{BUCKET}/run/steps.jsonl")) == steps
    for path in (f"{BUCKET}/run/log.jsonl", f"{BUCKET}/logs/log.jsonl"):
        lines = [line for line in rows(read(path)) if b"loss/train" in line]
        assert len(lines) == len(set(lines)) == 9
    assert len(rows(read(f"{BUCKET}/run/log.csv"))) > 9


def test_the_local_folder_keeps_the_newest_and_the_best_checkpoint(server):
    def score(state, outputs, targets):  # the second epoch is the best
        return torch.full((len(targets),), float(abs(state.timestamp.epoch - 2)))

    trainer = run(
        URL,
        save_num_checkpoints_to_keep=None,
        save_interval="1ep",
        save_best="loss",
        eval_dataloader=shuffling_loader(images=True),
    )
    trainer.fit()
    local = OPEN[trainer._options.save_folder].folder
    best = Path(trainer.best.checkpoint)
    assert saved(server) == [3, 6, 9]
    assert {one.name for one in local.glob("ep*")} == {best.name, "ep3-ba9"}
    assert best.parent == local


def test_a_second_machine_takes_over_at_once_and_the_first_one_stops(
    server, whole, monkeypatch, tmp_path
):
    """The first machine is slow: it trains on while the second one does."""
    first = run(URL, save_error="warn")
    seen = []

    def second_machine(event, state, logger):
        if event.value == "batch_start" and state.timestamp.batch == 5 and not seen:
            OPEN[first._options.save_folder].finish()
            with elsewhere(monkeypatch, tmp_path / "machine-2"):
                seen.append(run(URL))
                assert seen[0].state.timestamp.batch == 4
                seen[0].fit()

    first = run(URL, save_error="warn", callbacks=[second_machine])
    with pytest.raises(TakenOverError, match="another process writes"):
        first.fit()
    assert same(seen[0], whole)
    assert saved(server) == [8, 9]
    # The first machine continues the run that has ended.
    machine(monkeypatch, tmp_path / "machine-1")
    with pytest.warns(UserWarning, match="has changed since this machine used"):
        again = run(URL)
    assert again.state.timestamp.batch == 9


def test_what_a_slow_machine_copies_late_damages_no_checkpoint(
    server, whole, monkeypatch, tmp_path
):
    """A file of the first machine arrives after the second one has saved the same batch."""
    sent, arrives = threading.Event(), threading.Event()

    def fault(method, path):
        if method == "PUT" and path.endswith("ba4/state.json") and not sent.is_set():
            sent.set()
            arrives.wait(60)

    def second_machine(event, state, logger):
        if event.value == "batch_start" and state.timestamp.batch == 5 and not arrives.is_set():
            assert sent.wait(60)
            with elsewhere(monkeypatch, tmp_path / "machine-2"):
                second = run(URL, save_num_checkpoints_to_keep=None)
                assert second.state.timestamp.batch == 2
                second.fit()
                assert same(second, whole)
            arrives.set()

    server.fault = fault
    first = run(URL, callbacks=[second_machine], save_num_checkpoints_to_keep=None)
    with pytest.raises(TakenOverError):
        first.fit()
    machine(monkeypatch, tmp_path / "machine-3")
    run(URL, save_num_checkpoints_to_keep=None).fit()  # deletes what the first one had begun
    found, broken = find(local("path", URL), thorough=True)
    assert [one.manifest.batch for one in found] == [9, 8, 6, 4, 2]
    assert not broken


def test_what_was_saved_after_the_folder_was_read_is_not_cut_short(
    server, whole, monkeypatch, tmp_path
):
    """The first machine ends the run after the second one has read its fourth batch."""
    second, opened = [], {}

    def build(event, state, logger):
        if event.value == "batch_start" and state.timestamp.batch == 5:
            OPEN[first._options.save_folder].finish()
            with elsewhere(monkeypatch, tmp_path / "machine-2"):
                second.append(run(URL))
                opened.update(OPEN)

    first = run(URL, callbacks=[build])
    first.fit()
    OPEN.clear()
    OPEN.update(opened)
    with pytest.raises(TakenOverError, match="start this one again"):
        second[0].fit()
    machine(monkeypatch, tmp_path / "machine-3")
    trainer = run(URL)
    assert trainer.state.timestamp.batch == 9
    assert same(trainer, whole)
    assert len(rows(server.files.cat_file(f"{BUCKET}/run/steps.jsonl"))) == 9


@pytest.mark.filterwarnings("ignore:the records of the end", "ignore:.* could not be closed")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of open files
@pytest.mark.parametrize(
    ("number", "resumed"),
    [
        *((number, False) for number in drawn(range(2, 8), 3)),
        *((number, True) for number in drawn(range(9, 14), 2)),
    ],
)
def test_a_machine_may_vanish_before_the_first_checkpoint(
    number, resumed, server, monkeypatch, tmp_path
):
    """Whatever of the logs was copied, the run begins from scratch, and has each row once."""

    def loggers():
        return [CSVLogger(f"s3://{BUCKET}/logs/log.csv"), JSONLinesLogger(f"{URL}/log.jsonl")]

    lost = pytest.raises((KeyError, UnwritableCheckpointError))
    if resumed:  # from a checkpoint that is on the disk of this machine alone
        with lost_at(server, 2), lost:  # the machine is the writer of both folders
            run(URL, stop=3, loggers=loggers()).fit()
        OPEN.clear()
    with lost_at(server, number), lost:
        run(URL, stop=5 if resumed else 3, loggers=loggers()).fit()
    assert saved(server) == []
    machine(monkeypatch, tmp_path / "machine-2")
    run(URL, loggers=loggers()).fit()
    lines = rows(server.files.cat_file(f"{BUCKET}/run/log.jsonl"))
    assert len([line for line in lines if b"loss/train" in line]) == 9
    assert len(rows(server.files.cat_file(f"{BUCKET}/logs/log.csv"))) == 10


def test_another_run_is_refused_by_name(server):
    run(URL).fit()
    OPEN.clear()
    with pytest.raises(CheckpointExistsError, match=r"s3://bucket/run.*of another run"):
        run(URL, autoresume=False)
    run(URL, autoresume=False, save_overwrite=True, max_duration="1ep").fit()


def test_a_run_without_checkpoints_yet_is_refused_too(server, monkeypatch, tmp_path):
    with pytest.raises(KeyError):
        run(URL, stop=1).fit()
    machine(monkeypatch, tmp_path / "machine-2")
    trainer = run(URL, autoresume=False)
    with pytest.raises(TakenOverError, match=r"the run .* began in it"):
        trainer.fit()
    run(URL).fit()  # the same command takes over


def test_of_two_machines_that_are_built_together_one_is_refused(server, monkeypatch, tmp_path):
    first = run(URL)
    with elsewhere(monkeypatch, tmp_path / "machine-2"):
        run(URL).fit()
    with pytest.raises(TakenOverError, match="another process writes"):
        first.fit()
    assert saved(server) == [8, 9]


def test_a_damaged_checkpoint_is_skipped_for_the_one_before(server, whole, monkeypatch, tmp_path):
    with pytest.raises(KeyError):
        run(URL, stop=7).fit()
    files, newest = server.files, [p for p in server.files.find(BUCKET) if "-ba6/tensors" in p]
    raw = files.cat_file(newest[0])
    files.pipe_file(newest[0], raw[:-1] + bytes([raw[-1] ^ 1]))
    machine(monkeypatch, tmp_path / "machine-2")
    with pytest.warns(BrokenCheckpointWarning, match="skipped"):
        trainer = run(URL)
    assert trainer.state.timestamp.batch == 4
    trainer.fit()
    assert same(trainer, whole)


def test_the_same_machine_continues_from_its_disk(server, whole):
    """Also from what it had not copied yet."""
    with lost_at(server, 12), pytest.warns(UnsavedCheckpointWarning), pytest.raises(KeyError):
        run(URL, stop=7, save_error="warn").fit()
    local = next(iter(OPEN))
    kept = sorted(one.name for one in local.glob("ep*"))
    OPEN.clear()
    trainer = run(URL)
    assert trainer.state.timestamp.batch == 6
    assert kept[-1].endswith("ba6")
    trainer.fit()
    assert same(trainer, whole)
    assert saved(server) == [8, 9]


def test_a_checkpoint_that_is_saved_again_after_it_was_dropped_is_kept(monkeypatch, tmp_path):
    machine(monkeypatch, tmp_path)
    remote = RemoteFolder("memory://saved/again")
    remote.claim("a run")
    path = write(remote.folder / "ep0-ba2", {"w": torch.ones(2)}, None, info={"run": "a run"})
    remote.drop(path.name, "a run")
    remote.push([path.name])
    remote.finish()
    assert verify(path) == verify(local("url", f"{remote.url}/{path.name}"))
    remote.drop(path.name, "a run")
    remote.finish()
    assert not path.exists()
    OPEN.clear()


def test_errors_of_local_files_name_the_url(server, monkeypatch, tmp_path):
    run(URL, max_duration="2ba").fit()
    folder = next(iter(OPEN))
    with pytest.warns(BrokenCheckpointWarning, match=f"{URL}/ep0-ba2 is skipped"):
        first_valid([folder / "ep0-ba2"], Mock(side_effect=CheckpointError("damaged")))
    with pytest.raises(MissingCheckpointError, match=f"no {URL}/gone"):
        check_best(Best("accuracy", "max", 1.0, folder / "gone"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Set XDG_CACHE_HOME"):
        RemoteFolder("s3://bucket/other")


def test_a_writer_that_is_replaced_between_two_requests_stops_by_name(monkeypatch, tmp_path):
    first, second = (
        RemoteFolder("memory://replaced/run", local_folder=tmp_path / name) for name in "ab"
    )
    first.claim("a run")
    before = first.store.sizes(".writers")
    second.claim("a run")
    stale = Mock(side_effect=[before, *[second.store.sizes(".writers")] * 9])
    monkeypatch.setattr(first.store, "sizes", stale)
    with pytest.raises(TakenOverError, match="another process writes"):
        first.finish()


def test_a_checkpoint_that_vanishes_after_it_was_listed_is_not_missed(server, whole, monkeypatch):
    """As a writer that still lives deletes old ones."""
    with pytest.raises(KeyError):
        run(URL, stop=7).fit()
    vanished = []

    def fault(method, path):
        if method == "GET" and path.endswith("ep1-ba4/manifest.json") and not vanished:
            vanished.append(path)
            return 404, "NoSuchKey"
        return None

    OPEN.clear()
    monkeypatch.setattr(server, "fault", fault)
    trainer = run(URL)
    assert vanished
    assert trainer.state.timestamp.batch == 6
