"""Log how busy the machine is."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Event, Thread
from typing import Any

from composable._support.extras import needs
from composable.core.callback import Callback
from composable.core.logger import Logger
from composable.core.state import State
from composable.core.time import TimeLike, TimeUnit, check_length
from composable.distributed import Processes

_Figures = dict[str, Callable[[], float]]


class SystemMonitor(Callback):
    """Logs how busy the processor, the memory, the disk, the network and NVIDIA GPUs are.

    A thread reads the figures, and the loop logs a reading at the end of the batch after it; a fit
    that is shorter than `interval` has one reading, at its end. The figures describe the whole
    machine of rank 0, with all GPUs that `nvidia-smi` lists. A figure that cannot be read is
    omitted.

    Args:
        interval: The time between two readings, in seconds: "10sec" or "1m".

    Raises:
        ValueError: `interval` is zero, or not in seconds.
        TypeError: `interval` is not a time.
        ImportError: `psutil` or `pynvml` is missing.

    Example:
        >>> from composable import Trainer
        >>> from composable.callbacks import SystemMonitor
        >>> from composable.loggers import InMemoryLogger
        >>> memory = InMemoryLogger()
        >>> trainer = Trainer(
        ...     torch.nn.Linear(4, 3),
        ...     train_dataloader=[(torch.randn(8, 4), torch.randint(3, (8,)))] * 4,
        ...     max_duration="1ep",
        ...     loss_fn=torch.nn.functional.cross_entropy,
        ...     optimizers=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        ...     callbacks=SystemMonitor("10sec"),
        ...     loggers=memory,
        ...     progress_bar=False,
        ... )
        >>> _ = trainer.fit()
        >>> 0 < memory.latest["system/memory_percent"] < 100
        True
    """

    def __init__(self, interval: TimeLike = "10sec") -> None:
        self.interval = check_length("interval", interval, [TimeUnit.SECOND])
        with needs("SystemMonitor", "system"):
            import psutil  # noqa: F401 (here, so that it is missing at the start or never)
            import pynvml  # noqa: F401
        self._thread: Thread | None = None
        self._ended = Event()
        self._figures: dict[str, float] = {}

    def fit_start(self, state: State, logger: Logger) -> None:
        """Start to read the figures."""
        if logger.destinations and Processes.current().is_main:
            self._figures = {}
            self._ended.clear()
            self._thread = Thread(target=self._read, name="SystemMonitor", daemon=True)
            self._thread.start()

    def batch_end(self, state: State, logger: Logger) -> None:
        """Log a reading that is new."""
        figures, self._figures = self._figures, {}
        if figures:
            logger.log_metrics({f"system/{name}": value for name, value in figures.items()})

    def fit_end(self, state: State, logger: Logger) -> None:
        """Log the last reading."""
        self.close()
        self.batch_end(state, logger)

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self._thread = None

    def _read(self) -> None:
        """Read the figures at the interval until the end, and at least once."""
        levels, counters = _levels(), _counters()
        _values(levels)  # the utilization of the processor is that since the last reading
        before, then, first = _values(counters), time.perf_counter(), True
        while not self._ended.wait(float(self.interval.value)) or first:
            counts, now = _values(counters), time.perf_counter()
            known = counts.keys() & before.keys()
            rates = {name: (counts[name] - before[name]) / (now - then) for name in known}
            self._figures = {**_values(levels), **rates}
            before, then, first = counts, now, False


def _values(figures: _Figures) -> dict[str, float]:
    """Return the figures that can be read."""
    values = {}
    for name, figure in figures.items():
        with suppress(Exception):  # systems and drivers raise errors of any kind, or return None
            values[name] = float(figure())
    return values


def _levels() -> _Figures:
    """Return the figures of the processor, the memory, the disk, and the GPUs if there are any."""
    import psutil
    import pynvml

    levels: _Figures = {
        "cpu_percent": psutil.cpu_percent,
        "memory_percent": lambda: psutil.virtual_memory().percent,
        "memory_used": lambda: psutil.virtual_memory().used / 1e9,
        "disk_percent": lambda: psutil.disk_usage(os.curdir).percent,
    }
    with suppress(pynvml.NVMLError):  # there is no driver
        pynvml.nvmlInit()
        for i in range(pynvml.nvmlDeviceGetCount()):
            gpu = _gpu(pynvml, pynvml.nvmlDeviceGetHandleByIndex(i))
            levels |= {f"gpu{i}/{name}": figure for name, figure in gpu.items()}
    return levels


def _counters() -> _Figures:
    """Return the megabytes so far, of the disks and the network, by the name of their rate."""
    import psutil

    return {
        "disk_read": lambda: psutil.disk_io_counters().read_bytes / 1e6,
        "disk_written": lambda: psutil.disk_io_counters().write_bytes / 1e6,
        "network_received": lambda: psutil.net_io_counters().bytes_recv / 1e6,
        "network_sent": lambda: psutil.net_io_counters().bytes_sent / 1e6,
    }


def _gpu(nvml: Any, gpu: Any) -> _Figures:
    memory = partial(nvml.nvmlDeviceGetMemoryInfo, gpu)
    return {
        "percent": lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
        "memory_percent": lambda: 100 * memory().used / memory().total,
        "memory_used": lambda: memory().used / 1e9,
        "power": lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
        "temperature": lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    }
