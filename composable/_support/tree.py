"""Trees: what is nested in tuples, lists, mappings, named tuples, attrs classes and dataclasses.

They are never changed in place: a changed tree is a new tree. `torch.utils._pytree` takes mappings
other than dictionaries, subclasses of containers, attrs classes and dataclasses for leaves, unless
each type is registered for the process; and it takes 3 to 7 times as long for a batch.
"""

import copy
import dataclasses
import sys
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import attrs
from torch import Tensor

from composable._support.checks import kind_of

P = ParamSpec("P")
T = TypeVar("T")


def refuses_depth(function: Callable[P, T]) -> Callable[P, T]:
    """Raise a ValueError for a batch that is too deep to be visited."""

    @wraps(function)
    def refusing(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except RecursionError as error:
            raise ValueError(
                "the batch is nested too deep for Python's recursion limit of "
                f"{sys.getrecursionlimit()}, or it contains itself; return flatter batches from "
                "the dataset."
            ) from error

    return refusing


# --- one level ---


def children_of(tree: Any) -> Mapping[Any, Any] | None:
    """Return the children of a container by key, index or field; None for a leaf."""
    if isinstance(tree, Mapping):
        return tree
    if isinstance(tree, (tuple, list)):
        return dict(enumerate(tree))
    return {name: getattr(tree, name) for name in fields_of(tree)} or None


def fields_of(tree: Any) -> Mapping[str, str]:
    """Return the constructor argument of each field of an attrs class or dataclass."""
    if attrs.has(type(tree)):
        return {field.name: field.alias for field in attrs.fields(type(tree)) if field.init}
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return {field.name: field.name for field in dataclasses.fields(tree) if field.init}
    return {}


def is_namedtuple(value: Any) -> bool:
    """Return whether a value is a named tuple."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def rebuild(tree: Any, children: dict[Any, Any]) -> Any:
    """Build a container of other children, of the type of `tree`."""
    if isinstance(tree, Mapping):
        return rebuild_mapping(tree, children)
    if is_namedtuple(tree):
        return type(tree)(*children.values())
    if isinstance(tree, (tuple, list)):
        return type(tree)(children.values())
    names = fields_of(tree)
    evolve = attrs.evolve if attrs.has(type(tree)) else dataclasses.replace
    return evolve(tree, **{names[name]: child for name, child in children.items()})


def rebuild_mapping(like: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """Build a mapping of `items` of the same type as `like`."""
    if type(like) is dict:
        return items
    try:
        if not isinstance(like, (dict, UserDict)):  # a shallow copy may share what it holds
            return type(like)(items)  # type: ignore[call-arg]
        new = copy.copy(like)
        for key, value in items.items():  # update() adds to a Counter, and some refuse it
            if key not in new or new[key] is not value:
                new[key] = value
        return new
    except (AttributeError, TypeError):
        return items


# --- all levels ---


def _kept(leaf: Any) -> Any:
    return leaf


@refuses_depth
def map_tensors(
    function: Callable[[Tensor], Tensor], tree: Any, other: Callable[[Any], Any] = _kept
) -> Any:
    """Apply `function` to every tensor of a tree, and `other` to its other leaves.

    Raises:
        ValueError: The tree is too deep for Python's recursion limit.

    Example:
        >>> import torch
        >>> from composable.batches.batch import map_tensors
        >>> map_tensors(lambda t: t + 1, {"x": torch.zeros(1), "name": "a"})
        {'x': tensor([1.]), 'name': 'a'}
    """
    if not callable(function):
        raise TypeError(f"function must be a function of a tensor, not {kind_of(function)}.")
    return _map(function, tree, other)


def _map(function: Callable[[Tensor], Tensor], tree: Any, other: Callable[[Any], Any]) -> Any:
    if isinstance(tree, Tensor):
        return function(tree)
    if type(tree) is tuple or type(tree) is list:  # almost every batch
        return type(tree)([_map(function, child, other) for child in tree])
    children = children_of(tree)
    if children is None:
        return other(tree)
    new = {name: _map(function, child, other) for name, child in children.items()}
    if all(new[name] is child for name, child in children.items()):
        return tree
    return rebuild(tree, new)


def leaves_of(tree: Any) -> Iterator[Any]:
    """Iterate over the leaves of a tree: tensors, and other values that are not containers."""
    if type(tree) is tuple or type(tree) is list:  # almost every batch
        for child in tree:
            yield from leaves_of(child)
    elif isinstance(tree, Tensor) or (children := children_of(tree)) is None:
        yield tree
    else:
        for child in children.values():
            yield from leaves_of(child)


def tensors_of(tree: Any) -> Iterator[Tensor]:
    """Iterate over the tensors of a tree."""
    return (leaf for leaf in leaves_of(tree) if isinstance(leaf, Tensor))


def named_tensors(tree: Any, name: Any = None) -> Iterator[tuple[Any, Tensor]]:
    """Iterate over the tensors of a tree, each with its key, index or field in its container."""
    if isinstance(tree, Tensor):
        yield name, tree
    else:
        children = children_of(tree) or {}
        for key, child in zip(getattr(tree, "_fields", children), children.values(), strict=True):
            yield from named_tensors(child, key)
