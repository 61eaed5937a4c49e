"""The differences between two descriptions."""

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["compare"]


def compare(before: Any, now: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the path and the two values of each difference between two descriptions."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in {**before, **now}:
            inner = f"{path}/{name}" if path else str(name)
            yield from compare(before.get(name), now.get(name), inner)
    elif before != now:
        yield path, before, now
