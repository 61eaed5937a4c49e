"""Records of metrics: their names and times, and columns of tensors to keep them in checkpoints."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from numbers import Integral, Real
from typing import Any

import attrs
import torch
from torch import Tensor

from composable._support.checks import check_texts
from composable.core.time import Timestamp

Records = Sequence[tuple[Timestamp, Mapping[str, Any]]]

_COUNTS = {name: type(start) for name, start in attrs.asdict(Timestamp()).items()}
_DTYPES = {int: torch.int64, float: torch.float64}
_LARGEST = 2**63


def pack_records(records: Records) -> dict[str, Any]:
    """Return records as one column for each field of their timestamps, and for each metric.

    Example:
        >>> from composable.loggers._records import pack_records, unpack_records
        >>> packed = pack_records([(Timestamp(batch=1), {"loss": 0.5, "note": "warm"})])
        >>> packed["metrics"]["loss"]["values"]
        tensor([0.5000], dtype=torch.float64)
        >>> unpack_records(packed)[0][1]
        {'loss': 0.5, 'note': 'warm'}
    """
    columns: dict[str, tuple[list[int], list[Any]]] = {}
    for i, (_, metrics) in enumerate(records):
        for name, value in metrics.items():
            at, values = columns.setdefault(name, ([], []))
            at.append(i)
            values.append(plain_number(value))
    stamps = [stamp for stamp, _ in records]
    return {
        "timestamps": {
            name: torch.tensor([getattr(one, name) for one in stamps], dtype=_DTYPES[kind])
            for name, kind in _COUNTS.items()
        },
        "metrics": {
            name: {"at": torch.tensor(at, dtype=torch.int64), "values": _column(values)}
            for name, (at, values) in columns.items()
        },
    }


def unpack_records(packed: Mapping[str, Any]) -> list[tuple[Timestamp, dict[str, Any]]]:
    """Return the records that `pack_records` packed.

    Raises:
        ValueError: `packed` is something else.
    """
    try:
        fields = [packed["timestamps"][name].tolist() for name in _COUNTS]
        stamps = [Timestamp(*values) for values in zip(*fields, strict=True)]
        records: list[tuple[Timestamp, dict[str, Any]]] = [(stamp, {}) for stamp in stamps]
        for name, column in packed["metrics"].items():
            values = column["values"]
            values = values.tolist() if isinstance(values, Tensor) else values
            for i, value in zip(column["at"].tolist(), values, strict=True):
                records[i][1][name] = value
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"the state is not one of records: {type(error).__name__}: {error}"
        ) from error
    return records


def metric_patterns(metrics: Any) -> tuple[str, ...]:
    """Return patterns of the names of metrics as a tuple; raise a TypeError for other values."""
    check_texts("metrics", metrics, "names or patterns, such as ['loss/train', 'metrics/*']")
    return tuple(metrics)


def matching(metrics: Mapping[str, Any], patterns: Sequence[str]) -> dict[str, Any]:
    """Return the metrics whose names match one of the patterns."""
    return {
        name: value
        for name, value in metrics.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def times_of(timestamp: Timestamp) -> dict[str, Any]:
    """Return the times that every record in a file has; only seconds of training count."""
    return {
        "epoch": timestamp.epoch,
        "batch": timestamp.batch,
        "sample": timestamp.sample,
        "seconds": round(timestamp.total_wct, 6),
    }


def plain_number(value: Any) -> Any:
    """Convert numbers of other libraries, such as NumPy, to Python's."""
    if type(value) is float or value is None or isinstance(value, (bool, str)):
        return value  # the usual cases; abstract classes are slow to test
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def _column(values: list[Any]) -> Any:
    """Return values of one type as a tensor, and others as a list."""
    kinds = {type(value) for value in values}
    if kinds == {float}:
        return torch.tensor(values, dtype=torch.float64)
    if kinds == {int} and all(-_LARGEST <= value < _LARGEST for value in values):
        return torch.tensor(values, dtype=torch.int64)
    return values
