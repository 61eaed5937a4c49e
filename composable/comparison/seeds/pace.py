"""Decide by measurement whether several runs are computed together or each by itself."""

import statistics
from collections.abc import Callable

__all__ = ["Pace"]

_BEFORE = 3
"""Steps before the first that is measured: they allocate, and compare results."""
_TURN = 4
_TURNS = 6


class Pace:
    """Measures steps of both kinds in turns, and decides.

    Args:
        clock: Returns seconds.
        measured: Whether to measure; otherwise everything is computed together.
    """

    def __init__(self, clock: Callable[[], float], *, measured: bool) -> None:
        self._clock, self._measured = clock, measured
        self._steps = -_BEFORE
        self._began: float | None = None
        self._seconds: dict[bool, list[float]] = {True: [], False: []}
        self.together = True
        """Whether this step is computed together."""
        self.decided_alone = False

    def begin_step(self) -> None:
        """Begin a step, and choose its kind."""
        if not self._measured:
            return
        now = self._clock()
        if self._began is not None and self._steps > 0 and (self._steps - 1) % _TURN:
            self._seconds[self.together].append(now - self._began)  # not the first of a turn
        if self._steps >= _TURN * _TURNS:
            self._decide()
            return
        if self._steps >= 0:
            self.together = self._steps // _TURN % 2 == 0
        self._began = now
        self._steps += 1

    def interrupt(self) -> None:
        """Don't count the current step, in which something else happens."""
        self._began = None

    @property
    def ratio(self) -> float | None:
        """The seconds of a step computed together, as a ratio to those of separate steps."""
        together, alone = self._seconds[True], self._seconds[False]
        if not together or not alone:
            return None
        return statistics.median(together) / statistics.median(alone)

    def _decide(self) -> None:
        self._measured = False
        ratio = self.ratio
        self.together = ratio is not None and ratio < 1
        self.decided_alone = not self.together
