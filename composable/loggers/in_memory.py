"""Keep metrics in memory."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from composable._other_trainers import METHODS, explain_attribute
from composable.core.destination import LoggerDestination
from composable.core.logger import Columns, Rows, to_numbers
from composable.core.time import Timestamp
from composable.loggers._histograms import Histogram
from composable.loggers._records import pack_records, unpack_records

_COMPACT_AT = 1000  # pending records before their tensors are converted to numbers


class InMemoryLogger(LoggerDestination):
    """Keeps everything that is logged, for use during or after training, and across a resume.

    `Trainer.history` returns it. Checkpoints have the metrics so far. `images`, `histograms`,
    `texts`, `tables` and `figures` are lists of pairs: a timestamp, and the values by name. Images
    are copied to the CPU, and histograms are kept as counts. A resume does not restore these lists.

    Example:
        >>> from composable import Timestamp
        >>> from composable.loggers import InMemoryLogger
        >>> logger = InMemoryLogger()
        >>> logger.log_metrics({"loss": torch.tensor(0.5)}, Timestamp(batch=1))
        >>> logger.log_metrics({"loss": 0.25}, Timestamp(batch=2))
        >>> logger.series("loss"), logger.latest
        ([0.5, 0.25], {'loss': 0.25})
    """

    keeps_history = True

    def __init__(self) -> None:
        self.hyperparameters: dict[str, Any] = {}
        self.images: list[tuple[Timestamp, dict[str, Tensor]]] = []
        self.histograms: list[tuple[Timestamp, dict[str, Histogram]]] = []
        self.texts: list[tuple[Timestamp, dict[str, str]]] = []
        self.tables: list[tuple[Timestamp, dict[str, list[dict[str, Any]]]]] = []
        self.figures: list[tuple[Timestamp, dict[str, Any]]] = []
        self.artifacts: dict[str, str] = {}
        """The paths of files and folders, by name."""
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

    def log_images(self, images: Mapping[str, Tensor], timestamp: Timestamp) -> None:
        """Keep a copy of images."""
        copies = {name: image.detach().to("cpu", copy=True) for name, image in images.items()}
        self.images.append((timestamp, copies))

    def log_histograms(self, histograms: Mapping[str, Tensor], timestamp: Timestamp) -> None:
        """Count values, and keep the counts."""
        counted = {name: Histogram.of(values) for name, values in histograms.items()}
        self.histograms.append((timestamp, counted))

    def log_text(self, texts: Mapping[str, str], timestamp: Timestamp) -> None:
        """Keep texts."""
        self.texts.append((timestamp, dict(texts)))

    def log_table(self, name: str, columns: Columns, rows: Rows, timestamp: Timestamp) -> None:
        """Keep a table, as one mapping for each row."""
        table = [dict(zip(columns, row, strict=True)) for row in rows]
        self.tables.append((timestamp, {name: table}))

    def log_figure(self, name: str, figure: Any, timestamp: Timestamp) -> None:
        """Keep a figure."""
        self.figures.append((timestamp, {name: figure}))

    def log_artifact(self, name: str, path: str) -> None:
        """Keep the path of a file or a folder."""
        self.artifacts[name] = path

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
        self._numbers, self._pending = unpack_records(state), []

    def __getattr__(self, name: str) -> Any:
        return explain_attribute(self, name, METHODS)

    def __repr__(self) -> str:
        names = ", ".join(self.latest) or "nothing"
        return f"<{type(self).__name__}: {len(self.records)} records of {names}>"
