"""Keep metrics in memory."""

from collections.abc import Mapping
from typing import Any

from composable.core.destination import LoggerDestination
from composable.core.logger import to_numbers
from composable.core.time import Timestamp

__all__ = ["InMemoryLogger"]

_COMPACT_AT = 1000  # pending records before their tensors are converted to numbers


class InMemoryLogger(LoggerDestination):
    """Keeps every metric, for use during or after training.

    Example:
        >>> from composable import Timestamp
        >>> from composable.loggers import InMemoryLogger
        >>> logger = InMemoryLogger()
        >>> logger.log_metrics({"loss": torch.tensor(0.5)}, Timestamp(batch=1))
        >>> logger.log_metrics({"loss": 0.25}, Timestamp(batch=2))
        >>> logger.series("loss"), logger.latest
        ([0.5, 0.25], {'loss': 0.25})
    """

    def __init__(self) -> None:
        self.hyperparameters: dict[str, Any] = {}
        self._numbers: list[tuple[Timestamp, dict[str, Any]]] = []
        self._pending: list[tuple[Timestamp, Mapping[str, Any]]] = []

    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Keep the hyperparameters of the run."""
        self.hyperparameters.update(hyperparameters)

    def log_metrics(self, metrics: Mapping[str, Any], timestamp: Timestamp) -> None:
        """Keep metrics."""
        self._pending.append((timestamp, metrics))
        if len(self._pending) >= _COMPACT_AT:
            self._compact()

    def _compact(self) -> None:
        numbers = to_numbers(metrics for _, metrics in self._pending)
        stamps = [timestamp for timestamp, _ in self._pending]
        self._numbers += zip(stamps, numbers, strict=True)
        self._pending = []

    @property
    def records(self) -> list[tuple[Timestamp, dict[str, Any]]]:
        """All records: the timestamp of each, and its metrics as numbers."""
        self._compact()
        return list(self._numbers)

    def series(self, name: str) -> list[Any]:
        """Return the values of one metric, oldest first."""
        return [metrics[name] for _, metrics in self.records if name in metrics]

    @property
    def latest(self) -> dict[str, Any]:
        """The last value of every metric."""
        return {name: value for _, metrics in self.records for name, value in metrics.items()}
