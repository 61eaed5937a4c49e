"""Train a trial in turns with those of other workers: the worker's part of a calibration."""

from typing import TYPE_CHECKING

import attrs

from composable.comparison.trials.building import Build
from composable.comparison.trials.clock import Clock
from composable.comparison.trials.trial import Request, run_trial
from composable.comparison.trials.worker import Connection
from composable.core.callback import Callback
from composable.core.control import Control
from composable.core.time import elapsed

if TYPE_CHECKING:
    from composable.core.logger import Logger
    from composable.core.state import State

__all__ = ["Arrived", "Length", "Measured", "PacedTask"]


@attrs.frozen
class Length:
    """A message: the number of steps of the run, after the first one."""

    batches: int


@attrs.frozen
class Arrived:
    """A message: the run is at a point, and waits."""

    point: int


@attrs.frozen
class Measured:
    """A message: the seconds of a block of steps."""

    seconds: float


@attrs.frozen(eq=False)
class PacedTask:
    """A trial whose steps are measured in turns with those of other workers."""

    request: Request
    split_evaluation: bool
    batches: int | None = None
    """The number of steps of the run, if known."""

    def run(self, build: Build, connection: Connection) -> str | None:
        """Train until the last point, and return the error if there is one."""
        pacing = Pacing(connection, self.batches)
        result = run_trial(
            build,
            self.request.arguments,
            self.request.trial,
            split_evaluation=self.split_evaluation,
            callbacks=[pacing],
        )
        if pacing.is_done:
            return None
        return (
            result.error or f"the run ended after {result.batches} batches, before its last point"
        )


class Pacing(Callback):
    """Waits at each point, and measures blocks of steps on request.

    It sends `Length`, and receives the batches at which the points begin. At each point it sends
    `Arrived`. It then receives the length of a block to train, and sends its seconds as `Measured`,
    any number of times, until it receives None, to continue to the next point.

    Args:
        connection: The messages from and to the calibration.
        batches: The number of steps of the run. Default: as the first step shows.
    """

    def __init__(self, connection: Connection, batches: int | None = None) -> None:
        self.connection, self._length = connection, batches
        self.is_done = False
        self._clock: Clock | None = None
        self._batches = 0
        self._starts: list[int] | None = None
        self._point = 0
        self._block: tuple[int, int] | None = None
        self._began = 0.0

    def batch_end(self, state: "State", logger: "Logger") -> Control | None:
        """Wait, or end a block, if it is due."""
        self._batches += 1
        if self._clock is None or self._starts is None:
            self._clock = Clock(state.device)
            self.connection.send(Length(self._length or _length(state)))
            self._starts = self.connection.receive()
        if self._block is None and self._batches >= self._starts[self._point]:
            self._clock.switch("waiting", synchronize=True)
            self.connection.send(Arrived(self._point))
            return self._wait(len(self._starts))
        if self._block is not None:
            start, end = self._block
            if self._batches == start:
                self._began = self._clock.read("training", synchronize=True)
            if self._batches == end:
                seconds = self._clock.read("training", synchronize=True) - self._began
                self.connection.send(Measured(seconds))
                return self._wait(len(self._starts))
        return None

    def eval_before_all(self, state: "State", logger: "Logger") -> None:
        """Stop the clock."""
        if self._clock is not None:
            self._clock.switch("evaluation", synchronize=True)

    def eval_after_all(self, state: "State", logger: "Logger") -> None:
        """Start the clock again."""
        if self._clock is not None:
            self._clock.switch("training", synchronize=True)

    def _wait(self, points: int) -> Control | None:
        """Wait for a turn, or for the end of the point."""
        steps = self.connection.receive()
        if steps is None:
            self._block = None
            self._point += 1
            self.is_done = self._point == points
            return Control.STOP if self.is_done else None
        start = self._batches + 1
        self._block = start, start + steps
        if self._clock is not None:
            self._clock.switch("training")
        return None


def _length(state: "State") -> int:
    """Return the number of batches of the whole run."""
    done = elapsed(state)
    if not done:
        raise ValueError(
            f"max_duration={str(state.max_duration)!r} does not determine the number of steps, "
            "since the loader has no length; pass durations in batches, such as '300ba'."
        )
    return round(state.timestamp.batch / done)
