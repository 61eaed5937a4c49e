"""Destinations of metrics: the base class of all loggers."""

from collections.abc import Mapping
from typing import Any

from composable.core.callback import Callback
from composable.core.time import Timestamp

__all__ = ["LoggerDestination"]


class LoggerDestination(Callback):
    """A destination of metrics: a file, a screen, a service.

    It is also a callback. At each event, destinations run after all other callbacks, so that they
    see everything that those logged. Metrics arrive unconverted, tensors included. Convert them
    with `to_numbers` when writing, not at every step, because the conversion waits for the device.
    """

    def log_metrics(self, metrics: Mapping[str, Any], timestamp: Timestamp) -> None:
        """Record metrics: numbers or tensors of one element, by name."""

    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Record the hyperparameters of the run."""
