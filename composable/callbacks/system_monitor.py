"""Log how busy the machine is."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Event, Thread
from typing import Any

from composable._support.extras import needs
from composable.callbacks._intervals import check_length
from composable.core.callback import Callback
from composable.core.logger import Logger
from composable.core.state import State
from composable.core.time import TimeLike, TimeUnit
from composable.distributed import Processes

_GB, _MB = 1e9, 1e6
_Figures = Mapping[str, Callable[[], float]]


class SystemMonitor(Callback):
    """Logs how busy the processor, the memory, the disk, the network and NVIDIA GPUs are.

    A thread reads the figures, and the loop logs a reading at the end of the batch after it; a fit
    that is shorter than `interval` has one reading, at its end. The figures are those of the whole
    machine, of which rank 0 logs its own, with all GPUs that `nvidia-smi` lists. A figure that
    cannot be read is omitted.

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
        self.interval = check_length("interval", interval)
        if self.interval.unit is not TimeUnit.SECOND:
            raise ValueError(f"interval={interval!r} must be in seconds, such as '10sec' or '1m'.")
        with needs("SystemMonitor", "system"):
            import psutil  # noqa: F401 (here, so that it is missing at the start or never)
            import pynvml  # noqa: F401
        self._thread: Thread | None = None
        self._ended = Event()
        self._figures: dict[str, float] = {}

    def fit_start(self, state: State, logger: Logger) -> None:
        """Start to read the figures."""
        if logger.destinations and Processes.current().is_main:
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
        self._end()
        self.batch_end(state, logger)

    def close(self) -> None:
        """End the thread."""
        self._end()
        self._figures = {}

    def _end(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ended.set()
            thread.join()

    def _read(self) -> None:
        """Read the figures at the interval until the end, and at least once."""
        rates, levels = _counters(), {**_levels(), **_gpus()}
        before, counts = time.perf_counter(), _values(rates)
        _values(levels)  # the utilization of the processor is that since the last reading
        read = False
        while not self._ended.wait(float(self.interval.value)) or not read:
            now, new = time.perf_counter(), _values(rates)
            per_second = {
                name: (count - counts[name]) / (now - before)
                for name, count in new.items()
                if name in counts
            }
            self._figures, read = {**_values(levels), **per_second}, True
            before, counts = now, new


def _values(figures: _Figures) -> dict[str, float]:
    """Return the figures that can be read."""
    values = {}
    for name, figure in figures.items():
        with suppress(Exception):  # systems and drivers raise errors of any kind, or return None
            values[name] = float(figure())
    return values


def _levels() -> _Figures:
    """Return the figures of the processor, the memory and the disk of the working folder."""
    import psutil

    return {
        "cpu_percent": psutil.cpu_percent,
        "memory_percent": lambda: psutil.virtual_memory().percent,
        "memory_used": lambda: psutil.virtual_memory().used / _GB,
        "disk_percent": lambda: psutil.disk_usage(os.curdir).percent,
    }


def _counters() -> _Figures:
    """Return the megabytes so far, of the disks and the network, by the name of their rate."""
    import psutil

    return {
        "disk_read": lambda: psutil.disk_io_counters().read_bytes / _MB,
        "disk_written": lambda: psutil.disk_io_counters().write_bytes / _MB,
        "network_received": lambda: psutil.net_io_counters().bytes_recv / _MB,
        "network_sent": lambda: psutil.net_io_counters().bytes_sent / _MB,
    }


def _gpus() -> _Figures:
    """Return the figures of the NVIDIA GPUs; without a driver there are none."""
    import pynvml

    figures: dict[str, Callable[[], float]] = {}
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        for i in range(pynvml.nvmlDeviceGetCount()):
            own = _gpu(pynvml, pynvml.nvmlDeviceGetHandleByIndex(i))
            figures |= {f"gpu{i}/{name}": figure for name, figure in own.items()}
    return figures


def _gpu(nvml: Any, gpu: Any) -> _Figures:
    def memory_percent() -> float:
        memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
        return float(100 * memory.used / memory.total)

    return {
        "percent": lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
        "memory_percent": memory_percent,
        "memory_used": lambda: nvml.nvmlDeviceGetMemoryInfo(gpu).used / _GB,
        "power": lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
        "temperature": lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    }
