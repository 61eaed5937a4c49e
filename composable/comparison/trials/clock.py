"""The seconds of a trial by part."""

import time
from collections.abc import Mapping
from typing import Literal

import torch

__all__ = ["Clock", "ClockKind", "clock_kind", "now"]

ClockKind = Literal["cpu", "wall"]


def clock_kind(device: torch.device) -> ClockKind:
    """Return the kind of seconds in which a trial on a device is measured.

    On the CPU with one thread these are the CPU seconds of the process, which other processes
    change little. With several threads, they would add up over the threads. The seconds of a GPU
    are those of a wall clock, and so are those of several threads.
    """
    return "cpu" if device.type == "cpu" and torch.get_num_threads() == 1 else "wall"


def now(kind: ClockKind) -> float:
    """Return the reading of a clock, in seconds."""
    return time.process_time() if kind == "cpu" else time.perf_counter()


class Clock:
    """A stopwatch with several parts, one of which runs at a time; the first is "setup".

    Args:
        device: Where the trial trains. A device that queues its operations is synchronized where
            `switch` or `read` is requested to.
        begun: The readings of both clocks at the beginning; by default, now.
    """

    def __init__(
        self, device: torch.device, begun: Mapping[ClockKind, float] | None = None
    ) -> None:
        self.device, self.kind, self.part = device, clock_kind(device), "setup"
        self._seconds: dict[str, float] = {}
        self._since = now(self.kind) if begun is None else begun[self.kind]

    @staticmethod
    def readings() -> dict[ClockKind, float]:
        """Return the readings of both clocks, for a run whose device is not known yet."""
        return {"cpu": now("cpu"), "wall": now("wall")}

    def switch(self, part: str, *, synchronize: bool = False) -> None:
        """End the current part, and start another one."""
        if synchronize:
            self._synchronize()
        reading = now(self.kind)
        self._seconds[self.part] = self._seconds.get(self.part, 0.0) + reading - self._since
        self.part, self._since = part, reading

    def read(self, part: str, *, synchronize: bool = False) -> float:
        """Return the seconds of a part so far."""
        self.switch(self.part, synchronize=synchronize)
        return self._seconds.get(part, 0.0)

    def _synchronize(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
