"""Memory is logged, and its arguments are checked: tests/simgpu/test_memory.py has the rest."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from composable import State, Timestamp
from composable._support.paths import replacing
from composable.callbacks import MemoryMonitor, MemorySnapshot, OOMObserver
from composable.callbacks import memory_monitor as monitors
from composable.core.logger import Logger
from composable.loggers import InMemoryLogger
from tests.support.data import batches, stream
from tests.support.models import linear
from tests.support.runs import make_trainer

# --- MemoryMonitor


@pytest.mark.parametrize(("interval", "count"), [("1ba", 6), ("4ba", 1), ("1ep", 2), (None, 0)])
@pytest.mark.parametrize("loader", [batches(12), stream(12)], ids=["known", "unknown"])
def test_resident_memory_is_logged_at_intervals(interval, count, loader):
    memory = InMemoryLogger()
    make_trainer(None, loader, callbacks=MemoryMonitor(interval), loggers=memory).fit()

    for name in ("current", "peak"):
        sizes = memory.series(f"memory/{name}_resident_mem")
        assert len(sizes) == count
        assert all(0.01 < size < 100 for size in sizes)


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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the current value")
def test_peak_is_at_least_the_current_value_while_that_of_the_system_lags(monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=1))

    used = monitors.resident_memory()

    assert used["peak_resident_mem"] == used["current_resident_mem"] > 0.01
