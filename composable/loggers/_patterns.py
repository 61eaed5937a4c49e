"""Patterns of the names of metrics."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any


def metric_patterns(metrics: Any) -> tuple[str, ...]:
    """Return patterns as a tuple.

    Raises:
        TypeError: They are not a list of strings.
    """
    listed = isinstance(metrics, (list, tuple, set, frozenset))
    if not listed or not all(isinstance(name, str) for name in metrics):
        raise TypeError(
            f"metrics={metrics!r} must be a list of names or patterns, such as ['loss/train', "
            "'metrics/*']."
        )
    return tuple(metrics)


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
