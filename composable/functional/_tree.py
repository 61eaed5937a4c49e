"""Trees of tensors: mappings, tuples and lists, nested in any way."""

import copy
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

__all__ = ["map_named_tensors", "named_tensors"]


def named_tensors(tree: Any, name: Any = "batch") -> Iterator[tuple[Any, Tensor]]:
    """Iterate over the tensors of a tree, each with its key in its container."""
    if isinstance(tree, Tensor):
        yield name, tree
    for key, child in _children(tree):
        yield from named_tensors(child, key)


def map_named_tensors(
    function: Callable[[Any, Tensor], Tensor], tree: Any, name: Any = "batch"
) -> Any:
    """Apply `function(key, tensor)` to the tensors of a tree, and keep the types of containers."""
    if isinstance(tree, Tensor):
        return function(name, tree)
    new = {key: map_named_tensors(function, child, key) for key, child in _children(tree)}
    if isinstance(tree, (dict, UserDict)) and type(tree) is not dict:
        like = copy.copy(tree)
        like.update(new)
        return like
    if isinstance(tree, Mapping):
        return type(tree)(new)  # type: ignore[call-arg]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*new.values())
    return type(tree)(new.values()) if isinstance(tree, (tuple, list)) else tree


def _children(tree: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(tree, Mapping):
        return tree.items()
    if isinstance(tree, (tuple, list)):
        return zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True)
    return ()
