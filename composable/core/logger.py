"""Where metrics go."""

from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from composable.core._notes import add_origin_note
from composable.core.callback import Callback
from composable.core.time import Timestamp

__all__ = ["Logger", "LoggerDestination", "to_numbers"]


class LoggerDestination(Callback):
    """A place where metrics go: a file, a screen, a service.

    It is a callback too, and runs after all others at each event, since it must see what they
    logged. Metrics come as they are, tensors included: a destination turns them into numbers
    (`to_numbers`) when it writes, not at every step, for that waits for the device.
    """

    def log_metrics(self, metrics: Mapping[str, Any], timestamp: Timestamp) -> None:
        """Take in metrics: numbers or tensors of one element, by name."""

    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Take in what the run was started with."""


class Logger:
    """Hands metrics to every destination.

    Example:
        >>> from composable.core.logger import Logger
        >>> from composable.loggers import InMemoryLogger
        >>> memory = InMemoryLogger()
        >>> Logger([memory]).log_metrics({"loss": torch.tensor(0.5)})
        >>> memory.series("loss")
        [0.5]
    """

    def __init__(self, destinations: Iterable[LoggerDestination] = ()) -> None:
        self.destinations = tuple(destinations)
        self.timestamp = Timestamp()

    def log_metrics(self, metrics: Mapping[str, Any], timestamp: Timestamp | None = None) -> None:
        """Log metrics, by default with the timestamp of the event at hand.

        Raises:
            ValueError: A metric is neither a number, a string nor a tensor of one element.
        """
        if self.destinations:  # here, where it can still be told who logged it
            for name, value in metrics.items():
                _check_metric(name, value)
        for destination in self.destinations:
            try:
                destination.log_metrics(metrics, timestamp or self.timestamp)
            except Exception as error:
                add_origin_note(error, destination, "log_metrics")
                raise

    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Log what the run was started with."""
        for destination in self.destinations:
            destination.log_hyperparameters(hyperparameters)


def to_numbers(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Records with every tensor turned into a number, in one transfer from each device.

    Raises:
        ValueError: A metric is neither a number, a string nor a tensor of one element.
    """
    copies = [dict(record) for record in records]
    places: dict[torch.device, list[tuple[dict[str, Any], str, Tensor]]] = {}
    for record in copies:
        for name, value in record.items():
            _check_metric(name, value)
            if isinstance(value, Tensor):
                places.setdefault(value.device, []).append((record, name, value))
    for found in places.values():
        # float64 holds every float32 and every count exactly.
        values = torch.stack([value.detach().reshape(()).double() for _, _, value in found])
        for (record, name, value), number in zip(found, values.tolist(), strict=True):
            record[name] = number if value.is_floating_point() else int(number)
    return copies


def _check_metric(name: str, value: object) -> None:
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(
                f"metric {name!r} has {value.numel()} elements and must have one: log "
                "its mean, or each element under a name of its own."
            )
    elif not isinstance(value, (Real, str)) and value is not None:
        raise ValueError(f"metric {name!r} is {value!r}, not a number.")
