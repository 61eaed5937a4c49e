"""Runs in folders of an object store: what is copied there, and continued elsewhere."""

from pathlib import Path

import pytest
import torch

from composable._support.object_stores import OPEN
from composable.checkpoint import CheckpointExistsError
from composable.loggers import CSVLogger, JSONLinesLogger
from composable.resume import BrokenCheckpointWarning
from composable.resume.manager import UnsavedCheckpointWarning
from composable.storage import TakenOverError
from tests.support.data import shuffling_loader
from tests.support.object_store import BUCKET, lost_at, machine
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
            opened = dict(OPEN)
            OPEN[first._options.save_folder].finish()
            machine(monkeypatch, tmp_path / "machine-2")
            seen.append(run(URL))
            assert seen[0].state.timestamp.batch == 4
            seen[0].fit()
            machine(monkeypatch, tmp_path / "machine-1")
            OPEN.update(opened)

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
    first, opened = run(URL), dict(OPEN)
    machine(monkeypatch, tmp_path / "machine-2")
    run(URL).fit()
    OPEN.clear()
    OPEN.update(opened)
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
