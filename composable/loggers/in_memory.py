"""Keep metrics in memory."""

from collections.abc import Mapping
from numbers import Real
from typing import Any

from composable.core._html import panel, sparkline, table
from composable.core.destination import LoggerDestination
from composable.core.logger import to_numbers
from composable.core.time import Timestamp
from composable.loggers._records import pack_records, unpack_records

__all__ = ["InMemoryLogger"]

_COMPACT_AT = 1000  # pending records before their tensors are converted to numbers


class InMemoryLogger(LoggerDestination):
    """Keeps every metric, for use during or after training, and across a resume.

    `Trainer.history` returns it. Checkpoints have the metrics so far.

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

    def state_dict(self) -> dict[str, Any]:
        """Return the metrics, which a resumed run continues."""
        return pack_records(self.records)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the metrics by those that `state_dict` returned.

        Raises:
            ValueError: The state is something else.
        """
        if state:  # a checkpoint of an earlier version has none
            self._numbers, self._pending = unpack_records(state), []

    def __repr__(self) -> str:
        names = ", ".join(self.latest) or "nothing"
        return f"<{type(self).__name__}: {len(self.records)} records of {names}>"

    def _repr_html_(self) -> str:
        series: dict[str, list[Any]] = {}
        for _, metrics in self.records:
            for name, value in metrics.items():
                series.setdefault(name, []).append(value)
        rows = [_row(name, values) for name, values in series.items()]
        title = f"{type(self).__name__}: {len(self.records)} records"
        return panel(title, table(rows, ("metric", "records", "last", "least", "largest", "")))


def _row(name: str, values: list[Any]) -> tuple[object, ...]:
    numbers = [float(value) for value in values if isinstance(value, Real)]
    ends = [min(numbers), max(numbers)] if numbers else []
    shown = [f"{end:.4g}" for end in ends] or ["", ""]
    last = f"{values[-1]:.4g}" if isinstance(values[-1], float) else values[-1]
    return (name, len(values), last, *shown, sparkline(numbers))
