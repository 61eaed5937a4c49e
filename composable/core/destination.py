"""Destinations of metrics: the base class of all loggers."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from composable.core.callback import Callback
from composable.core.logger import Columns, Rows, UnsupportedLogError
from composable.core.time import Timestamp


class LoggerDestination(Callback):
    """A destination of metrics: a file, a screen, a service.

    It is also a callback. At each event, destinations run after all other callbacks, so that they
    see everything that those logged. Metrics arrive unconverted, tensors included. Convert them
    with `to_numbers` when writing, not at every step, because the conversion waits for the device.

    A subclass defines the methods that it supports. The others raise an `UnsupportedLogError`,
    of which the `Logger` warns once. Tensors other than metrics may be changed in place after the
    call, so a method that keeps them copies them.
    """

    drops_silently: ClassVar[bool] = False
    """Whether the `Logger` does not warn of what this class does not support."""
    keeps_history: ClassVar[bool] = False
    """Whether everything that was logged can be read from it: the history of the run."""

    def run_entries(self) -> Mapping[str, Any]:
        """Return what the record of a run has of this logger, as JSON, by the name of the entry."""
        return {}

    def continue_run(self, entries: Mapping[str, Any]) -> None:
        """Continue the logs of a run that was killed without a checkpoint.

        Args:
            entries: What `run_entries` returned in that run.
        """

    def log_metrics(self, metrics: Mapping[str, Any], timestamp: Timestamp) -> None:
        """Record metrics: numbers or tensors of one element, by name."""

    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Record the hyperparameters of the run."""

    def log_images(self, images: Mapping[str, Tensor], timestamp: Timestamp) -> None:
        """Record images: tensors [C, H, W] or [N, C, H, W] by name."""
        raise UnsupportedLogError

    def log_histograms(self, histograms: Mapping[str, Tensor], timestamp: Timestamp) -> None:
        """Record the distributions of tensors, by name."""
        raise UnsupportedLogError

    def log_text(self, texts: Mapping[str, str], timestamp: Timestamp) -> None:
        """Record texts, by name."""
        raise UnsupportedLogError

    def log_table(self, name: str, columns: Columns, rows: Rows, timestamp: Timestamp) -> None:
        """Record a table."""
        raise UnsupportedLogError

    def log_figure(self, name: str, figure: Any, timestamp: Timestamp) -> None:
        """Record a figure of Matplotlib."""
        raise UnsupportedLogError

    def log_artifact(self, name: str, path: str) -> None:
        """Record a file or a folder."""
        raise UnsupportedLogError
