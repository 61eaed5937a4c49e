"""The time of each process in a step, without what it waits for the others."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs

from composable.distributed.processes import Processes
from composable.distributed.starting import rank_and_host

log = logging.getLogger("composable")

_STEPS = 100
_RATIO = 1.5
_LEAST = 1_000_000  # nanoseconds: below it, loggers and the scheduler of the host decide


@attrs.define(eq=False)
class Pace:
    """Measures the time of this process outside of collectives, and logs which process is slow.

    It is the time of the host, which does not wait for what a GPU computes.
    """

    processes: Processes
    _since: int | None = attrs.field(init=False, default=None)
    _taken: int = attrs.field(init=False, default=0)
    _steps: list[list[int]] = attrs.field(init=False, factory=list)
    _logged: int | None = attrs.field(init=False, default=None)

    def start(self) -> None:
        """Start the clock: no other process is waited for."""
        self._since = time.perf_counter_ns()

    def stop(self) -> None:
        """Stop the clock, if it runs: other processes are waited for."""
        if self._since is not None:
            self._taken += time.perf_counter_ns() - self._since
            self._since = None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the clock in a block."""
        self.stop()
        yield
        self.start()

    def lap(self) -> int:
        """Return the nanoseconds since the last call, without the time of the stopped clock."""
        if self._since is not None:
            self.stop()
            self.start()
        taken, self._taken = self._taken, 0
        return taken

    def compare(self, taken: list[int]) -> None:
        """Log the slowest rank, if another one than before was slow for 100 steps.

        Args:
            taken: The nanoseconds of each rank in a step.
        """
        self._steps.append(taken)
        if len(self._steps) < _STEPS or not self.processes.is_main:
            del self._steps[:-_STEPS]
            return
        usual = [_median(column) for column in zip(*self._steps, strict=True)]
        self._steps.clear()
        slowest, middle = max(usual), _median(usual)
        rank = usual.index(slowest)
        if slowest < max(_RATIO * middle, middle + _LEAST):
            self._logged = None
        elif rank != self._logged:
            self._logged = rank
            log.warning(
                "%s is slow: outside of collectives it takes %.3g s a step, and the median of the "
                "ranks is %.3g s; look at its data loading, its cores and its disk.",
                *(rank_and_host(rank), slowest / 1e9, middle / 1e9),
            )


def _median(values: Sequence[int]) -> int:
    """Return the lower one of two in the middle: of two processes, the faster one."""
    return sorted(values)[(len(values) - 1) // 2]
