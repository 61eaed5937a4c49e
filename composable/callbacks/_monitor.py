"""The base class of callbacks that measure some batches."""

from typing import Any

from composable.core.callback import Callback
from composable.core.intervals import IntervalLike, check_interval, completes
from composable.core.logger import Logger
from composable.core.state import State


class Monitor(Callback):
    """Measures the batches that complete an interval, and logs `_metrics` at their end.

    A subclass measures where `_due` is true, and extends `close` by what it keeps within a batch.
    """

    def __init__(self, interval: IntervalLike) -> None:
        self.interval = check_interval("interval", interval)
        self._due = False
        self._metrics: dict[str, Any] = {}

    def batch_start(self, state: State, logger: Logger) -> None:
        """Decide whether this batch is measured."""
        self.close()
        self._due = completes(self.interval, state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Log the measurements."""
        if self._metrics:
            logger.log_metrics(self._metrics)
        self.close()

    def close(self) -> None:
        """Discard the measurements of a batch that did not end."""
        self._due, self._metrics = False, {}
