"""Log how much memory training uses."""

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from composable._support.devices import memory_statistics
from composable._support.warn import warn_user
from composable.callbacks._intervals import AtIntervals
from composable.core.intervals import IntervalLike
from composable.core.logger import Logger
from composable.core.state import State

_GB = 1e9
_KEYS = MappingProxyType(
    {
        "allocated_bytes.all.current": "current_allocated_mem",
        "active_bytes.all.current": "current_active_mem",
        "inactive_split_bytes.all.current": "current_inactive_mem",
        "reserved_bytes.all.current": "current_reserved_mem",
        "allocated_bytes.all.peak": "peak_allocated_mem",
        "active_bytes.all.peak": "peak_active_mem",
        "inactive_split_bytes.all.peak": "peak_inactive_mem",
        "reserved_bytes.all.peak": "peak_reserved_mem",
        "num_alloc_retries": "alloc_retries",
    }
)


class MemoryMonitor(AtIntervals):
    """Logs how much memory training uses, in units of 10⁹ bytes.

    On a GPU it logs the statistics of PyTorch's allocator: `memory/current_allocated_mem`,
    `current_active_mem`, `current_inactive_mem` and `current_reserved_mem`, the same with `peak_`,
    and the number `memory/alloc_retries`. It reads counters of the host, and does not wait for the
    device. On the CPU, and on devices whose allocators have no statistics, such as "mps", it logs
    the resident memory of the process: `memory/current_resident_mem` and
    `memory/peak_resident_mem`.

    Args:
        interval: When to log: "10ba", "1ep", a function `(state, event) -> bool`, or None for
            never.
        memory_keys: The statistics to log on a GPU: names of `torch.cuda.memory_stats`, each with
            the name under which it is logged. Names that contain "bytes" are converted to 10⁹
            bytes. Default: those above.

    Raises:
        ValueError: `interval` is zero, or not a valid time.
        TypeError: `memory_keys` is not a mapping of strings to strings.

    Example:
        >>> from composable import State, Timestamp
        >>> from composable.callbacks import MemoryMonitor
        >>> from composable.core.logger import Logger
        >>> from composable.loggers import InMemoryLogger
        >>> memory, monitor = InMemoryLogger(), MemoryMonitor("1ba")
        >>> state = State(torch.nn.Linear(2, 1), timestamp=Timestamp(batch=1))
        >>> monitor.batch_end(state, Logger([memory]))
        >>> memory.latest["memory/peak_resident_mem"] > 0.01
        True
    """

    def __init__(
        self,
        interval: IntervalLike = "10ba",
        *,
        memory_keys: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(interval)
        self.memory_keys = _KEYS if memory_keys is None else _check_keys(memory_keys)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Warn if there is nothing to log."""
        if memory_statistics(state.device) is None and not resident_memory():
            warn_user(
                f"MemoryMonitor logs nothing: {state.device.type} devices have no statistics, and "
                "this operating system does not report the resident memory of a process.",
            )

    def _act(self, state: State, logger: Logger) -> None:
        if logger.destinations and (used := self._used(memory_statistics(state.device))):
            logger.log_metrics({f"memory/{name}": value for name, value in used.items()})

    def _used(self, stats: Mapping[str, Any] | None) -> dict[str, float]:
        if stats is None:
            return resident_memory()
        return {
            name: stats[key] / _GB if "bytes" in key else stats[key]
            for key, name in self.memory_keys.items()
            if key in stats
        }


def resident_memory() -> dict[str, float]:
    """Return the resident memory of the process, current and peak, as far as the system tells it.

    Linux tells both, and macOS tells the peak.
    """
    try:
        import resource  # not on Windows
    except ImportError:
        return {}
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / _GB
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 (half the time of Path.open)
            pages = int(file.read().split()[1])
    except OSError:
        return {"peak_resident_mem": peak}
    current = pages * resource.getpagesize() / _GB
    # Linux updates the two at different times, so its peak may lag behind.
    return {"current_resident_mem": current, "peak_resident_mem": max(peak, current)}


def _check_keys(keys: Any) -> Mapping[str, str]:
    parts = [*keys, *keys.values()] if isinstance(keys, Mapping) else [None]
    if not all(isinstance(part, str) for part in parts):
        raise TypeError(
            f"memory_keys={keys!r} must be a mapping of names of torch.cuda.memory_stats to names "
            "of metrics, such as {'allocated_bytes.all.peak': 'peak_allocated_mem'}."
        )
    return dict(keys)
