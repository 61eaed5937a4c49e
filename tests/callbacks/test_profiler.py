"""Parts of a run are profiled by a schedule, which a resumed run continues."""

import json

import pytest
import torch

from composable import Event
from composable.callbacks import Profiler
from tests.support.data import Stream, batches
from tests.support.models import same, weights
from tests.support.observers import Raise, Watch
from tests.support.runs import make_trainer


def traces(folder):
    """Return the batches of each trace, by the range in its name."""
    found = {}
    for path in folder.glob("*.json"):
        events = json.loads(path.read_text())["traceEvents"]
        named = {event["name"] for event in events if event.get("name", "").startswith("batch ")}
        found[path.stem] = sorted(int(name.removeprefix("batch ")) for name in named)
    return found


def profiled(folder, loader=None, duration="4ep", **options):
    """Return the traces of a run with three batches an epoch."""
    trainer = make_trainer(
        None, loader, callbacks=Profiler(folder, **options), max_duration=duration
    )
    trainer.fit()
    return traces(folder)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"trace-ba2-ba4": [2, 3, 4]}),
        ({"wait": 0, "warmup": 0, "active": 1}, {"trace-ba0-ba0": [0]}),
        ({"wait": 6, "active": 2}, {"trace-ba7-ba8": [7, 8]}),
        (
            {"wait": 2, "active": 1, "repeat": 2},
            {"trace-ba3-ba3": [3], "trace-ba7-ba7": [7]},
        ),
        (
            {"wait": 3, "active": 1, "repeat": None},
            {"trace-ba4-ba4": [4], "trace-ba9-ba9": [9]},
        ),
        ({"wait": 11, "warmup": 0, "active": 9}, {"trace-ba11-ba11": [11]}),
        ({"wait": 11}, {}),
        ({"wait": 90}, {}),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_profiled_batches_are_those_of_the_schedule(options, expected, known, tmp_path):
    loader = batches(12) if known else Stream(batches(12))

    assert profiled(tmp_path, loader, **options) == expected


def test_table_lists_the_operations(tmp_path):
    profiled(tmp_path, record_shapes=True, profile_memory=True, with_flops=True)

    table = (tmp_path / "trace-ba2-ba4.txt").read_text()
    assert "aten::addmm" in table
    assert "CPU Mem" in table
    assert "FLOPs" in table
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".txt"]


def test_nothing_is_profiled_outside_the_schedule(tmp_path, monkeypatch):
    built = []
    monkeypatch.setattr(
        "composable.callbacks.profiler.profile", lambda **options: built.append(options)
    )

    assert profiled(tmp_path, wait=12) == {}
    assert built == []


@pytest.mark.parametrize("known", [True, False])
def test_profiler_runs_during_the_recording_only(known, tmp_path):
    enabled = Watch(Event.AFTER_FORWARD, read=lambda state: torch.autograd._profiler_enabled())
    loader = batches(12) if known else Stream(batches(12))
    profiler = Profiler(tmp_path, wait=0, warmup=3, active=3, repeat=None)

    make_trainer(None, loader, callbacks=[profiler, enabled], max_duration="4ep").fit()

    assert enabled.values == [False] * 3 + [True] * 3 + [False] * 3 + [True] * 3


def test_failed_run_writes_what_was_recorded(tmp_path):
    fault = Raise(RuntimeError("no disk"), Event.AFTER_FORWARD, batch=3)
    trainer = make_trainer(callbacks=[Profiler(tmp_path), fault])

    with pytest.raises(RuntimeError, match="no disk"):
        trainer.fit()

    assert traces(tmp_path) == {"trace-ba2-ba3": [2, 3]}


@pytest.mark.parametrize("cut", range(1, 7))
def test_resumed_run_continues_the_schedule(cut, tmp_path):
    schedule = {"wait": 1, "warmup": 1, "active": 2, "repeat": 2}
    runs, folder = tmp_path / "runs", tmp_path / "traces"

    def train(*others):
        trainer = make_trainer(
            callbacks=[Profiler(folder, **schedule), *others],
            max_duration="4ep",
            save_folder=runs,
            save_interval="1ba",
            autoresume=True,
        )
        return weights(trainer.fit().model)

    with pytest.raises(KeyboardInterrupt):
        train(Raise(KeyboardInterrupt(), Event.BATCH_START, batch=cut))
    resumed = train()

    whole = [2, 3, 6, 7]
    recorded = [batch for found in traces(folder).values() for batch in found]
    assert sorted(set(recorded)) == whole
    plain = make_trainer(max_duration="4ep").fit().model
    assert same(resumed, weights(plain))


def test_later_fit_continues_the_schedule_and_replaces_no_file(tmp_path):
    profiler = Profiler(tmp_path, wait=3, warmup=0, active=2)
    trainer = make_trainer(callbacks=profiler, max_duration="9ep")
    trainer.fit(duration="2ba")
    trainer.fit(duration="3ba")
    make_trainer(callbacks=profiler).fit()

    assert traces(tmp_path) == {"trace-ba3-ba4": [3, 4], "trace-ba3-ba4.1": [3, 4]}


def test_recording_during_another_one_is_skipped(tmp_path):
    first, second = Profiler(tmp_path / "a"), Profiler(tmp_path / "b", wait=2, repeat=3)

    with pytest.warns(UserWarning, match="skips a recording at batch 2, because another"):
        make_trainer(callbacks=[first, second], max_duration="4ep").fit()

    assert traces(tmp_path / "a") == {"trace-ba2-ba4": [2, 3, 4]}
    assert traces(tmp_path / "b") == {"trace-ba9-ba11": [9, 10, 11]}


def test_recording_during_the_users_profiler_is_skipped(tmp_path):
    with torch.profiler.profile(), pytest.warns(UserWarning, match="another profiler"):
        profiled(tmp_path)

    assert traces(tmp_path) == {}


def test_other_ranks_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)

    assert profiled(tmp_path) == {}
