"""The figures of the machine are logged as they are read; NVML is a stand-in."""

import itertools
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from composable.callbacks import SystemMonitor, system_monitor
from composable.loggers import InMemoryLogger
from tests.support.data import batches
from tests.support.observers import Raise
from tests.support.runs import make_trainer


class NVML:
    """Two GPUs, the second of which does not tell its power."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def nvmlInit(self):
        pass

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, i):
        return i

    def nvmlDeviceGetUtilizationRates(self, gpu):
        return SimpleNamespace(gpu=90 + gpu)

    def nvmlDeviceGetMemoryInfo(self, gpu):
        return SimpleNamespace(used=2_000_000_000, total=8_000_000_000)

    def nvmlDeviceGetTemperature(self, gpu, sensor):
        return 60 + gpu

    def nvmlDeviceGetPowerUsage(self, gpu):
        if gpu:
            raise self.NVMLError("Not Supported")
        return 250_500


def logged(interval="10sec", loader=None, **options):
    """Train, and return the records of the figures, without their prefix."""
    memory = InMemoryLogger()
    trainer = make_trainer(
        None, loader, callbacks=SystemMonitor(interval), loggers=memory, **options
    )
    trainer.fit()
    found = [
        {n.removeprefix("system/"): v for n, v in values.items() if n.startswith("system/")}
        for _, values in memory.records
    ]
    return list(filter(None, found))


def test_figures_that_can_be_read_are_logged(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", NVML())
    monkeypatch.setattr(psutil, "disk_io_counters", lambda: None)  # as in some containers

    (values,) = logged()  # of a fit that is shorter than the interval

    gpus = {name: value for name, value in values.items() if name.startswith("gpu")}
    assert gpus == {
        "gpu0/percent": 90,
        "gpu0/memory_percent": 25,
        "gpu0/memory_used": 2,
        "gpu0/power": 250.5,
        "gpu0/temperature": 60,
        "gpu1/percent": 91,
        "gpu1/memory_percent": 25,
        "gpu1/memory_used": 2,
        "gpu1/temperature": 61,
    }
    assert values.keys() - gpus == {
        *("cpu_percent", "memory_percent", "memory_used", "disk_percent"),
        *("network_received", "network_sent"),
    }


def test_rates_are_those_since_the_last_reading(monkeypatch):
    ticks = itertools.count()
    clock = SimpleNamespace(now=0)

    def tick():
        clock.now = next(ticks)
        return clock.now

    def network():
        return SimpleNamespace(bytes_recv=3e6 * clock.now, bytes_sent=7e6)

    monkeypatch.setattr(system_monitor, "time", SimpleNamespace(perf_counter=tick))
    monkeypatch.setattr(psutil, "net_io_counters", network)

    class Slow(list):
        def __iter__(self):
            for batch in super().__iter__():
                time.sleep(0.02)
                yield batch

    readings = logged("0.001sec", Slow(batches(24)), max_duration="1ep")

    assert len(readings) > 1
    for values in readings:
        assert (values["network_received"], values["network_sent"]) == (3, 0)


def test_thread_ends_with_a_fit_that_fails():
    failing = [SystemMonitor("1h"), Raise(RuntimeError("no disk"), batch=2)]
    trainer = make_trainer(callbacks=failing, loggers=InMemoryLogger())

    with pytest.raises(RuntimeError, match="no disk"):
        trainer.fit()

    assert "SystemMonitor" not in {thread.name for thread in threading.enumerate()}
