"""Parts of a tree, chosen by patterns of their paths."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

__all__ = ["matches", "replaced", "without"]


def matches(path: tuple[Any, ...], patterns: Iterable[str]) -> bool:
    """Whether a path, its parts divided by "/", has one of the patterns."""
    text = "/".join(map(str, path))
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def without(tree: Any, patterns: Iterable[str], path: tuple[Any, ...] = ()) -> Any:
    """A tree without the entries of its mappings whose paths have one of the patterns.

    Example:
        >>> from composable.checkpoint.filters import without
        >>> without({"memory": {"EMA": 1, "Mine": 2}, "model": 3}, ["memory/EMA"])
        {'memory': {'Mine': 2}, 'model': 3}
    """
    patterns = tuple(patterns)
    if not patterns or not isinstance(tree, Mapping):
        return tree
    return {
        key: without(value, patterns, (*path, key))
        for key, value in tree.items()
        if not matches((*path, key), patterns)
    }


def replaced(tree: Any, other: Any, patterns: Iterable[str], path: tuple[Any, ...] = ()) -> Any:
    """A tree in which what has one of the patterns is as in another tree, or isn't there.

    Example:
        >>> from composable.checkpoint.filters import replaced
        >>> replaced({"a": {"b": 1, "c": 2}}, {"a": {"b": 10, "c": 20}}, ["a/b"])
        {'a': {'b': 10, 'c': 2}}
    """
    patterns = tuple(patterns)
    if not patterns or not (isinstance(tree, Mapping) and isinstance(other, Mapping)):
        return tree
    result = {}
    for key in [*tree, *(key for key in other if key not in tree)]:
        inner = (*path, key)
        if matches(inner, patterns):
            if key in other:
                result[key] = other[key]
        elif key in tree:
            result[key] = replaced(tree[key], other.get(key), patterns, inner)
    return result
