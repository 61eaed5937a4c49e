"""The interface to which callbacks and the loop log."""

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from numbers import Real
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from composable._support.checks import as_path
from composable._support.notes import add_origin_note
from composable._support.secrets import redact
from composable._support.warn import warn_user
from composable.batches.precision import widest_float
from composable.core.time import Timestamp

Columns: TypeAlias = Sequence[str]
"""The titles of the columns of a table."""
Rows: TypeAlias = Sequence[Sequence[Any]]
"""The rows of a table: plain values, one for each column."""


class UnsupportedLogError(NotImplementedError):
    """A destination cannot record values of a kind, such as images."""


class UnsupportedLogWarning(UserWarning):
    """A destination cannot record values of a kind, such as images, and drops them."""


class Destination(Protocol):
    """An object that records metrics, such as a `LoggerDestination`.

    Of the other methods of a `LoggerDestination`, it has those that it supports.
    """

    def log_metrics(self, metrics: Mapping[str, Any], timestamp: Timestamp) -> None: ...
    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None: ...


class Logger:
    """Passes metrics, and everything else that is logged, on to every destination.

    A destination that cannot record values of some kind, such as images, drops them with one
    `UnsupportedLogWarning`. Without destinations nothing is converted or checked.

    Example:
        >>> from composable.core.logger import Logger
        >>> from composable.loggers import InMemoryLogger
        >>> memory = InMemoryLogger()
        >>> logger = Logger([memory])
        >>> logger.log_metrics({"loss": torch.tensor(0.5)})
        >>> logger.log_text({"sample": "a first try"})
        >>> memory.series("loss"), memory.texts[0][1]
        ([0.5], {'sample': 'a first try'})
    """

    def __init__(self, destinations: Iterable[Destination] = ()) -> None:
        if not isinstance(destinations, Iterable) or isinstance(destinations, Tensor):
            raise TypeError(
                f"destinations={destinations!r} must be a list of objects that record metrics, "
                "such as [InMemoryLogger()]."
            )
        self.destinations = tuple(destinations)
        self.timestamp = Timestamp()
        self._warned: set[tuple[type, str]] = set()

    def log_metrics(self, metrics: Mapping[str, Any], timestamp: Timestamp | None = None) -> None:
        """Log metrics.

        Args:
            metrics: Numbers, strings or tensors of one element, by name.
            timestamp: The time to log them at; by default the current event's.

        Raises:
            ValueError: A metric is neither a number, a string nor a tensor of one element.
        """
        if self.destinations:  # here, where the caller is still on the stack
            for name, value in metrics.items():
                _check_metric(name, value)
            self._pass_on("log_metrics", metrics, timestamp or self.timestamp)

    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Log the hyperparameters of the run; values under the names of secrets are redacted."""
        self._pass_on("log_hyperparameters", redact(hyperparameters))

    def log_images(self, images: Mapping[str, Tensor], timestamp: Timestamp | None = None) -> None:
        """Log images.

        Args:
            images: One image [C, H, W] or several [N, C, H, W] by name, with 1, 3 or 4 channels:
                `torch.uint8`, or floating point in [0, 1]. Values outside are clipped.
            timestamp: The time to log them at; by default the current event's.

        Raises:
            TypeError: A value is not a tensor of such a dtype.
            ValueError: A tensor has another shape.
        """
        if self.destinations:
            for name, image in images.items():
                _check_image(name, image)
            self._pass_on("log_images", images, timestamp or self.timestamp)

    def log_histograms(
        self, histograms: Mapping[str, Tensor], timestamp: Timestamp | None = None
    ) -> None:
        """Log the distributions of values.

        Args:
            histograms: The values by name: real tensors of any shape. They are read at once, which
                waits for the device.
            timestamp: The time to log them at; by default the current event's.

        Raises:
            TypeError: A value is not a real tensor.
        """
        if self.destinations:
            for name, values in histograms.items():
                if not isinstance(values, Tensor) or values.is_complex():
                    raise TypeError(
                        f"histograms[{name!r}] must be a real tensor, not {_kind(values)}."
                    )
            self._pass_on("log_histograms", histograms, timestamp or self.timestamp)

    def log_text(self, texts: Mapping[str, str], timestamp: Timestamp | None = None) -> None:
        """Log texts.

        Args:
            texts: The texts by name, such as a generated sample.
            timestamp: The time to log them at; by default the current event's.

        Raises:
            TypeError: A value is not a string.
        """
        if self.destinations:
            for name, text in texts.items():
                if not isinstance(text, str):
                    raise TypeError(f"texts[{name!r}]={text!r} must be a string; pass str(value).")
            self._pass_on("log_text", texts, timestamp or self.timestamp)

    def log_table(
        self, name: str, columns: Columns, rows: Rows, timestamp: Timestamp | None = None
    ) -> None:
        """Log a table.

        Args:
            name: The name of the table.
            columns: The titles of its columns.
            rows: Its rows: plain values, one for each column.
            timestamp: The time to log it at; by default the current event's.

        Raises:
            ValueError: A row has not one value for each column.
        """
        if self.destinations:
            for i, row in enumerate(rows):
                if len(row) != len(columns):
                    raise ValueError(
                        f"rows[{i}] of table {name!r} has {len(row)} values and must have one for "
                        f"each of the {len(columns)} columns."
                    )
            self._pass_on("log_table", name, columns, rows, timestamp or self.timestamp)

    def log_figure(self, name: str, figure: Any, timestamp: Timestamp | None = None) -> None:
        """Log a figure of Matplotlib; it is not closed.

        Args:
            name: The name of the figure.
            figure: A `matplotlib.figure.Figure`.
            timestamp: The time to log it at; by default the current event's.

        Raises:
            TypeError: It has no method `savefig`.
        """
        if self.destinations:
            if not callable(getattr(figure, "savefig", None)):
                raise TypeError(
                    f"figure {name!r} must be a matplotlib.figure.Figure, not {_kind(figure)}."
                )
            self._pass_on("log_figure", name, figure, timestamp or self.timestamp)

    def log_artifact(self, name: str, path: str | os.PathLike[str]) -> None:
        """Log a file or a folder, such as a checkpoint or an exported model.

        Args:
            name: The name of the artifact.
            path: The file or folder; it is copied or uploaded before the call returns or later.

        Raises:
            TypeError: `path` is not a path.
            ValueError: `path` is a URL.
        """
        if self.destinations:
            self._pass_on("log_artifact", name, os.fspath(as_path("path", path)))

    def _pass_on(self, method: str, *values: Any) -> None:
        for destination in self.destinations:
            try:
                getattr(destination, method, _refuse)(*values)
            except UnsupportedLogError:
                self._warn(destination, method)
            except Exception as error:
                add_origin_note(error, destination, method)
                raise

    def _warn(self, destination: Destination, method: str) -> None:
        kind = type(destination)
        if (kind, method) not in self._warned and not getattr(kind, "drops_silently", False):
            self._warned.add((kind, method))
            name = getattr(destination, "name", kind.__name__)
            warn_user(
                f"{name} does not support {method}, so these values are dropped.",
                UnsupportedLogWarning,
            )


def _refuse(*values: Any) -> None:
    raise UnsupportedLogError


def to_numbers(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert every tensor of some records to a number, in one transfer from each device.

    Raises:
        ValueError: A metric is neither a number, a string nor a tensor of one element.
    """
    copies = [dict(record) for record in records]
    by_device: dict[torch.device, dict[torch.dtype, list[tuple[dict[str, Any], str, Tensor]]]] = {}
    for record in copies:
        for name, value in record.items():
            if type(value) in _PLAIN:
                continue
            _check_metric(name, value)
            if isinstance(value, Tensor):
                of_device = by_device.setdefault(value.device, {})
                of_device.setdefault(value.dtype, []).append((record, name, value))
    for device, kinds in by_device.items():
        # float64 represents every float32 and every count exactly.
        widest = widest_float(device)
        with torch.no_grad():
            stacked = [
                torch.stack([value.reshape(()) if value.ndim else value for _, _, value in found])
                for found in kinds.values()
            ]
            stacked = [values.to(widest) for values in stacked]
        numbers = torch.cat(stacked).tolist()
        for (record, name, value), number in zip(chain(*kinds.values()), numbers, strict=True):
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
        check_real(name, value)
    elif not isinstance(value, (Real, str)) and value is not None:
        raise ValueError(
            f"metric {name!r} is {value!r}; it must be a number, a string or a tensor of one "
            "element."
        )


def check_real(name: str, value: Tensor) -> Tensor:
    """Return the value of a metric; raise a ValueError if it is complex."""
    if value.is_complex():
        raise ValueError(
            f"metric {name!r} is complex, of {value.dtype}; return or log its .real, its .imag or "
            "its .abs()."
        )
    return value


def _check_image(name: str, image: object) -> None:
    if not isinstance(image, Tensor) or not (
        image.is_floating_point() or image.dtype is torch.uint8
    ):
        raise TypeError(
            f"images[{name!r}] must be a tensor of torch.uint8 or floating point, not "
            f"{_kind(image)}."
        )
    if image.ndim not in (3, 4) or image.shape[-3] not in (1, 3, 4):
        raise ValueError(
            f"images[{name!r}] has shape {tuple(image.shape)} and must have [C, H, W] or "
            "[N, C, H, W] with 1, 3 or 4 channels."
        )


def _kind(value: object) -> str:
    return f"one of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
