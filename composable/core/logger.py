"""The interface to which callbacks and the loop log."""

from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, Protocol

import torch
from torch import Tensor

from composable.core._notes import add_origin_note
from composable.core.time import Timestamp

__all__ = ["Logger", "to_numbers"]


class Destination(Protocol):
    """An object that records metrics, such as a `LoggerDestination`."""

    def log_metrics(self, metrics: Mapping[str, Any], timestamp: Timestamp) -> None: ...
    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None: ...


class Logger:
    """Passes metrics on to every destination.

    Example:
        >>> from composable.core.logger import Logger
        >>> from composable.loggers import InMemoryLogger
        >>> memory = InMemoryLogger()
        >>> Logger([memory]).log_metrics({"loss": torch.tensor(0.5)})
        >>> memory.series("loss")
        [0.5]
    """

    def __init__(self, destinations: Iterable[Destination] = ()) -> None:
        if not isinstance(destinations, Iterable) or isinstance(destinations, Tensor):
            raise TypeError(
                f"destinations={destinations!r} must be a list of objects that record metrics, "
                "such as [InMemoryLogger()]."
            )
        self.destinations = tuple(destinations)
        self.timestamp = Timestamp()

    def log_metrics(self, metrics: Mapping[str, Any], timestamp: Timestamp | None = None) -> None:
        """Log metrics.

        Args:
            metrics: Numbers, strings or tensors of one element, by name.
            timestamp: The time to log them at; by default that of the current event.

        Raises:
            ValueError: A metric is neither a number, a string nor a tensor of one element.
        """
        if self.destinations:  # here, where the caller is still on the stack
            for name, value in metrics.items():
                _check_metric(name, value)
        for destination in self.destinations:
            try:
                destination.log_metrics(metrics, timestamp or self.timestamp)
            except Exception as error:
                add_origin_note(error, destination, "log_metrics")
                raise

    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Log the hyperparameters of the run."""
        for destination in self.destinations:
            destination.log_hyperparameters(hyperparameters)


def to_numbers(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert every tensor of some records to a number, in one transfer from each device.

    Raises:
        ValueError: A metric is neither a number, a string nor a tensor of one element.
    """
    copies = [dict(record) for record in records]
    by_device: dict[torch.device, list[tuple[dict[str, Any], str, Tensor]]] = {}
    for record in copies:
        for name, value in record.items():
            _check_metric(name, value)
            if isinstance(value, Tensor):
                by_device.setdefault(value.device, []).append((record, name, value))
    for found in by_device.values():
        # float64 represents every float32 and every count exactly.
        values = torch.stack([value.detach().reshape(()).double() for _, _, value in found])
        for (record, name, value), number in zip(found, values.tolist(), strict=True):
            record[name] = number if value.is_floating_point() else int(number)
    return copies


_PLAIN = frozenset((float, int, bool, str, type(None)))


def _check_metric(name: str, value: object) -> None:
    if type(value) in _PLAIN:  # the usual case; an abstract class is slow to test
        return
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(
                f"metric {name!r} has {value.numel()} elements and must have one: log its mean, or "
                "each element under its own name."
            )
    elif not isinstance(value, (Real, str)) and value is not None:
        raise ValueError(
            f"metric {name!r} is {value!r}; it must be a number, a string or a tensor of one "
            "element."
        )
