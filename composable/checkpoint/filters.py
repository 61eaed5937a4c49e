"""Filter trees by patterns of paths."""

from collections.abc import Iterable, Mapping, Sequence, Set
from fnmatch import fnmatchcase
from typing import Any


def matches(path: tuple[Any, ...], patterns: Iterable[str]) -> bool:
    """Return whether a path, its parts joined by "/", matches one of the patterns."""
    text = "/".join(map(str, path))
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def expanded(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return patterns, and patterns of the entries of a run that belong to the same values.

    The weights of the model that are trained, where it is evaluated with others, belong to `model`,
    and the average of an algorithm to its memory.

    Example:
        >>> from composable.checkpoint.filters import expanded
        >>> expanded(["memory/EMA", "model/weights/head.*"])
        ('memory/EMA', 'averages/EMA', 'model/weights/head.*', 'raw/model/head.*')
    """
    found = []
    for pattern in patterns:
        found.append(pattern)
        first, _, rest = pattern.partition("/")
        if first == "memory":
            found.append(f"averages/{rest}".rstrip("/"))
        elif first in ("model", "loss_fn"):
            found.append(f"raw/{first}/{rest.removeprefix('weights/')}".rstrip("/"))
    return tuple(found)


def covers(path: str, patterns: Iterable[str]) -> bool:
    """Return whether a path, or an entry that contains it, matches one of the patterns.

    Example:
        >>> from composable.checkpoint.filters import covers
        >>> covers("optimizers/0/param_groups/1", ["optimizers/*/param_groups"])
        True
    """
    parts = path.split("/")
    return any(matches(tuple(parts[:end]), patterns) for end in range(1, len(parts) + 1))


def replaced(tree: Any, other: Any, patterns: Sequence[str], path: tuple[Any, ...] = ()) -> Any:
    """Copy a tree; entries whose path matches a pattern come from `other`, or are dropped.

    The entries of lists are named by their indices, if both lists have the same length.

    Example:
        >>> from composable.checkpoint.filters import replaced
        >>> replaced({"a": {"b": 1, "c": 2}}, {"a": {"b": 10, "c": 20}}, ["a/b"])
        {'a': {'b': 10, 'c': 2}}
        >>> replaced({"memory": {"EMA": 1, "Mine": 2}, "model": 3}, {}, ["memory/EMA"])
        {'memory': {'Mine': 2}, 'model': 3}
    """
    if isinstance(tree, list) and isinstance(other, list) and len(tree) == len(other):
        pairs = replaced(dict(enumerate(tree)), dict(enumerate(other)), patterns, path)
        return list(pairs.values())
    if not patterns or not isinstance(tree, Mapping):
        return tree
    other = other if isinstance(other, Mapping) else {}
    result = {}
    for key in [*tree, *(key for key in other if key not in tree)]:
        inner = (*path, key)
        if matches(inner, patterns):
            if key in other:
                result[key] = other[key]
        elif key in tree:
            result[key] = replaced(tree[key], other.get(key), patterns, inner)
    return result


def check_patterns(name: str, patterns: Any, example: str = "optimizers") -> tuple[str, ...]:
    """Return patterns of paths as a tuple."""
    if isinstance(patterns, str):
        return (patterns,)
    if not isinstance(patterns, (Sequence, Set)) or not all(isinstance(p, str) for p in patterns):
        raise TypeError(f"{name}={patterns!r} must be a list of patterns, such as [{example!r}].")
    return tuple(patterns)
