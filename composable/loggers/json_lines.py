"""Metrics in a file, one JSON object a line."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from composable.core.logger import LoggerDestination, to_numbers
from composable.core.time import Timestamp

__all__ = ["JSONLinesLogger"]


class JSONLinesLogger(LoggerDestination):
    """Appends metrics to a file, one JSON object a line.

    Every line has `epoch`, `batch`, `sample` and `seconds` (of training), and the metrics.
    Lines are written whole, `flush_interval` records at a time and at the end of `fit`, however
    it ends. JSON has no NaN or infinity: they are written as the strings "NaN", "Infinity" and
    "-Infinity".

    Args:
        path: The file; its folder is made. An existing file is an error.
        flush_interval: Records held before they are written, at least 1.
        overwrite: Replace an existing file.

    Raises:
        FileExistsError: The file exists and `overwrite` is False.
        ValueError: `flush_interval` is below 1.

    Example:
        >>> import tempfile, pathlib
        >>> from composable import Timestamp
        >>> from composable.loggers import JSONLinesLogger
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> logger = JSONLinesLogger(folder / "metrics.jsonl")
        >>> logger.log_metrics({"loss": torch.tensor(0.5)}, Timestamp(batch=1))
        >>> logger.close()
        >>> print((folder / "metrics.jsonl").read_text().strip())
        {"epoch": 0, "batch": 1, "sample": 0, "seconds": 0.0, "loss": 0.5}
    """

    def __init__(
        self, path: str | Path, *, flush_interval: int = 100, overwrite: bool = False
    ) -> None:
        if not isinstance(flush_interval, int) or flush_interval < 1:
            raise ValueError(f"flush_interval={flush_interval!r} must be an integer from 1 on.")
        self.path = Path(path)
        if self.path.exists() and not overwrite:
            raise FileExistsError(
                f"path={str(self.path)!r} exists: give another file, or overwrite=True."
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._flush_interval = flush_interval
        self._pending: list[tuple[Timestamp, Mapping[str, Any]]] = []
        self._file: IO[str] | None = self.path.open("w", encoding="utf-8")

    def log_metrics(self, metrics: Mapping[str, Any], timestamp: Timestamp) -> None:
        """Take in metrics."""
        self._pending.append((timestamp, metrics))
        if len(self._pending) >= self._flush_interval:
            self.flush()

    def flush(self) -> None:
        """Write what is held."""
        if not self._pending:
            return
        if self._file is None:  # closed at the end of an earlier fit
            self._file = self.path.open("a", encoding="utf-8")
        numbers = to_numbers(metrics for _, metrics in self._pending)
        lines = [
            json.dumps({**_times(timestamp), **_printable(metrics)}, allow_nan=False)
            for (timestamp, _), metrics in zip(self._pending, numbers, strict=True)
        ]
        self._pending = []  # not before: an interruption up to here loses nothing
        self._file.write("\n".join(lines) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Write what is held and close the file; it opens again when there is more."""
        try:
            self.flush()
        finally:
            if self._file is not None:
                self._file.close()
                self._file = None


def _times(timestamp: Timestamp) -> dict[str, Any]:
    return {
        "epoch": timestamp.epoch,
        "batch": timestamp.batch,
        "sample": timestamp.sample,
        "seconds": round(timestamp.total_wct, 6),
    }


def _printable(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _as_json(value) for name, value in metrics.items()}


def _as_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
