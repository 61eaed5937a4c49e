"""Memory is logged; its allocations are recorded on a CUDA device, of which tests have a fake."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from composable import State, Timestamp
from composable._support.paths import replacing
from composable.callbacks import MemoryMonitor, MemorySnapshot, OOMObserver, _allocations
from composable.callbacks import memory_monitor as monitors
from composable.callbacks import oom_observer as observers
from composable.core.logger import Logger
from composable.loggers import InMemoryLogger
from tests.support.data import Stream, batches
from tests.support.models import linear
from tests.support.runs import make_trainer

CUDA = torch.device("cuda", 0)
GB = 10**9


@pytest.fixture
def fake(monkeypatch):
    """Replace what a CPU build of PyTorch lacks, and return the record of the calls."""
    calls = SimpleNamespace(history=[], observers=[], statistics={})
    memory = torch.cuda.memory
    snapshot = {"segments": [{"address": 1}], "device_traces": [[]]}
    monkeypatch.setattr(
        memory, "_record_memory_history", lambda **options: calls.history.append(options)
    )
    monkeypatch.setattr(memory, "_snapshot", lambda: snapshot)
    monkeypatch.setattr(torch.cuda, "memory_summary", lambda device: f"memory of {device}")
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: calls.statistics)
    monkeypatch.setattr(
        torch._C, "_cuda_attach_out_of_memory_observer", calls.observers.append, raising=False
    )
    observers._attach.cache_clear()
    yield calls
    observers._attach.cache_clear()
    assert _allocations._recorders == {}
    assert observers._active == []


def on_cuda(batch=0):
    before = Timestamp(batch=max(0, batch - 1))
    now = Timestamp(batch=batch)
    return State(linear(), device=CUDA, timestamp=now, previous_timestamp=before, epoch_length=100)


def drive(callback, count, logger=None):
    """Call the hooks of a fit of some batches; close is left to the caller."""
    logger = logger or Logger()
    hooks = {name: getattr(callback, name, None) for name in ("batch_start", "batch_end")}
    callback.fit_start(on_cuda(), logger)
    for batch in range(count):
        if hooks["batch_start"]:
            callback.batch_start(on_cuda(batch), logger)
        if hooks["batch_end"]:
            callback.batch_end(on_cuda(batch + 1), logger)


# --- MemoryMonitor


@pytest.mark.parametrize(("interval", "count"), [("1ba", 6), ("4ba", 1), ("1ep", 2), (None, 0)])
@pytest.mark.parametrize("known", [True, False])
def test_resident_memory_is_logged_at_intervals(interval, count, known):
    memory, loader = InMemoryLogger(), batches(12)
    make_trainer(
        None,
        loader if known else Stream(loader),
        callbacks=MemoryMonitor(interval),
        loggers=memory,
    ).fit()

    sizes = memory.series("memory/current_resident_mem")
    assert len(sizes) == count
    peaks = memory.series("memory/peak_resident_mem")
    assert all(0.01 < size < 100 for size in sizes + peaks)


def test_statistics_of_the_allocator_are_logged_by_composers_names(fake):
    fake.statistics = dict.fromkeys(monitors._KEYS, 3 * GB) | {"num_alloc_retries": 2}
    memory = InMemoryLogger()

    drive(MemoryMonitor("2ba"), 5, Logger([memory]))

    kinds = ("allocated", "active", "inactive", "reserved")
    sizes = {f"memory/{when}_{kind}_mem": 3.0 for when in ("current", "peak") for kind in kinds}
    assert [metrics for _, metrics in memory.records] == [{**sizes, "memory/alloc_retries": 2}] * 2


def test_statistics_can_be_chosen(fake):
    fake.statistics = {"segment.all.current": 7, "reserved_bytes.all.current": GB}
    memory = InMemoryLogger()
    keys = {"segment.all.current": "segments", "reserved_bytes.all.current": "reserved", "x": "y"}

    drive(MemoryMonitor("1ba", memory_keys=keys), 1, Logger([memory]))

    assert memory.latest == {"memory/segments": 7, "memory/reserved": 1.0}


def test_nothing_is_read_without_loggers(monkeypatch):
    monkeypatch.setattr(monitors, "resident_memory", lambda: pytest.fail("read"))
    monitor = MemoryMonitor("1ba")

    monitor.batch_end(State(linear(), timestamp=Timestamp(batch=1)), Logger())


def test_system_without_resident_memory_is_a_warning(monkeypatch):
    monkeypatch.setattr(monitors, "resident_memory", dict)
    memory = InMemoryLogger()
    trainer = make_trainer(callbacks=MemoryMonitor("1ba"), loggers=memory)

    with pytest.warns(UserWarning, match="MemoryMonitor logs nothing: cpu devices"):
        trainer.fit()

    assert memory.series("memory/peak_resident_mem") == []


# --- MemorySnapshot


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_snapshot_has_the_batches_of_the_interval(fake, tmp_path):
    callback = MemorySnapshot(tmp_path / "new", skip_batches=2, interval="3ba", max_entries=9)

    drive(callback, 10)

    assert files(tmp_path / "new") == ["memory-ba5.json", "memory-ba5.txt"]
    assert json.loads((tmp_path / "new/memory-ba5.json").read_text())["segments"] == [
        {"address": 1}
    ]
    assert (tmp_path / "new/memory-ba5.txt").read_text() == "memory of cuda:0"
    assert fake.history == [{"stacks": "python", "max_entries": 9}, {"enabled": None}]


def test_snapshot_of_a_later_fit_replaces_no_file(fake, tmp_path):
    callback = MemorySnapshot(tmp_path, skip_batches=0, interval="1ba")

    for _ in range(2):
        drive(callback, 3)

    assert files(tmp_path) == [
        "memory-ba1.1.json",
        "memory-ba1.1.txt",
        "memory-ba1.json",
        "memory-ba1.txt",
    ]


def test_batch_that_is_repeated_after_a_rollback_is_not_recorded_again(fake, tmp_path):
    callback = MemorySnapshot(tmp_path, interval="1ba")
    drive(callback, 3)

    callback.batch_start(on_cuda(1), Logger())

    assert len(fake.history) == 2


def test_files_are_renamed_before_the_one_that_needs_them(tmp_path, monkeypatch):
    renamed, rename = [], Path.replace
    monkeypatch.setattr(
        Path, "replace", lambda self, target: [renamed.append(self.name), rename(self, target)]
    )

    with replacing(tmp_path / "m.b") as partial:
        for name in ("m.c", "m.b", "m.a"):
            partial.with_name(name).touch()

    assert renamed[-1] == "m.b"
    assert files(tmp_path) == ["m.a", "m.b", "m.c"]


def test_recording_stops_with_the_fit(fake, tmp_path):
    callback = MemorySnapshot(tmp_path, interval="100ba")

    drive(callback, 3)
    callback.close()

    assert fake.history[-1] == {"enabled": None}
    assert files(tmp_path) == []


# --- OOMObserver


def test_allocations_are_written_at_the_error(fake, tmp_path):
    first, second = OOMObserver(tmp_path), OOMObserver(tmp_path, filename="b", max_entries=5)
    for one in (first, second, first):
        drive(one, 2)
    (observe,) = fake.observers

    observe(0, 1, 2, 3)
    assert files(tmp_path) == ["b.json", "b.txt", "oom.json", "oom.txt"]

    for path in tmp_path.iterdir():
        path.unlink()
    first.close()
    assert {"enabled": None} not in fake.history
    observe(0, 1, 2, 3)
    assert files(tmp_path) == ["b.json", "b.txt"]

    second.close()
    assert fake.history[-1] == {"enabled": None}


def test_error_in_writing_does_not_hide_the_error_of_memory(fake, tmp_path):
    tmp_path.joinpath("file").touch()
    observer = OOMObserver(tmp_path / "file")
    drive(observer, 1)

    with pytest.warns(UserWarning, match=r"OOMObserver could not write .*oom.json"):
        fake.observers[0](0, 1, 2, 3)

    observer.close()


@pytest.mark.parametrize(("one", "other"), [(5, 9), (9, 5)])
def test_recording_for_two_keeps_the_entries_of_both(one, other, fake, tmp_path):
    snapshot, observer = (
        MemorySnapshot(tmp_path, interval="1ba", max_entries=other),
        OOMObserver(tmp_path, max_entries=one),
    )
    drive(observer, 1)
    drive(snapshot, 3)

    assert [options.get("max_entries") for options in fake.history] == [one, 9]
    observer.close()
    assert fake.history[-1] == {"enabled": None}


@pytest.mark.parametrize("build", [MemorySnapshot, OOMObserver])
def test_run_on_another_device_is_one_warning(build, tmp_path):
    trainer = make_trainer(callbacks=build(tmp_path))

    with pytest.warns(UserWarning, match="does nothing") as caught:
        trainer.fit()

    (warning,) = caught
    assert str(warning.message) == (
        f"{build.__name__} does nothing, because only the allocations of CUDA devices are "
        "recorded: the run is on the device 'cpu'."
    )
    assert files(tmp_path) == []


@pytest.mark.parametrize("build", [MemorySnapshot, OOMObserver])
def test_build_without_these_functions_is_one_warning(build, tmp_path):
    with pytest.warns(UserWarning, match="_cuda_record_memory_history") as caught:
        drive(build(tmp_path), 3)

    assert len(caught) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MemoryMonitor("0ba"), "interval='0ba' must be greater than 0"),
        (lambda: MemoryMonitor(memory_keys=["a"]), r"memory_keys=\['a'\] must be a mapping"),
        (lambda: MemoryMonitor(memory_keys={"a": 1}), "memory_keys={'a': 1} must be a mapping"),
        (lambda: MemorySnapshot(1), "folder=1 must be a str"),
        (lambda: MemorySnapshot("a", skip_batches=-1), "skip_batches=-1 must be at least 0"),
        (lambda: MemorySnapshot("a", interval="0ba"), "interval='0ba' must be greater than 0"),
        (lambda: MemorySnapshot("a", max_entries=0), "max_entries=0 must be at least 1"),
        (lambda: OOMObserver("a", max_entries=0), "max_entries=0 must be at least 1"),
        (lambda: OOMObserver("a", filename=""), "filename='' must name a file"),
    ],
)
def test_rejects_invalid_arguments(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the current value")
def test_peak_is_at_least_the_current_value_while_that_of_the_system_lags(monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=1))

    used = monitors.resident_memory()

    assert used["peak_resident_mem"] == used["current_resident_mem"] > 0.01
