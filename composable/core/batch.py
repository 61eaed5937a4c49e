"""Reading, rebuilding and splitting batches of any structure.

A batch is a tree: tensors in tuples, lists, dictionaries, named tuples, attrs classes and
dataclasses. Batches are never changed in place: a changed tree is a new tree.
"""

import copy
import dataclasses
import sys
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import attrs
import torch
from torch import Tensor

from composable.functional._checks import check_count, check_size, check_tensor, kind_of

__all__ = ["BatchSpec", "count_examples", "map_tensors", "select_examples", "split_batch"]


P = ParamSpec("P")
T = TypeVar("T")


def _refuses_depth(function: Callable[P, T]) -> Callable[P, T]:
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


def _check_key(_: object, attribute: "attrs.Attribute[Any]", key: Any) -> None:
    path = isinstance(key, (list, tuple)) and key and all(map(_is_step, key))
    if not (_is_step(key) or path or callable(key) or _is_pair(key)):
        raise TypeError(
            f"{attribute.name}={key!r} must be an index (0), a name ('image'), a path of these "
            "(['views', 0]), a function that reads the part, or a pair of functions (get, set)."
        )


def _is_step(key: Any) -> bool:
    return isinstance(key, (int, str)) and not isinstance(key, bool)


@attrs.frozen
class BatchSpec:
    """Which part of a batch is the input and which is the target.

    Args:
        input_key: An index (`0`), a name (`"image"`), a path (`["views", 0]`), a function that
            returns the part, or a pair of functions `(get, set)` where `set(batch, value)`
            returns a new batch.
        target_key: Likewise, for the target.

    Raises:
        TypeError: A key is of another type.

    Example:
        >>> from composable.core.batch import BatchSpec
        >>> spec = BatchSpec("image", "label")
        >>> batch = {"image": torch.zeros(2), "label": torch.tensor([0, 1])}
        >>> spec.targets(batch)
        tensor([0, 1])
        >>> spec.replace(batch, targets="new")["label"], batch["label"]
        ('new', tensor([0, 1]))
    """

    input_key: Any = attrs.field(default=0, validator=_check_key)
    target_key: Any = attrs.field(default=1, validator=_check_key)

    def inputs(self, batch: Any) -> Any:
        """Return the input of a batch; a batch that is a tensor is its own input."""
        kind = type(batch)
        if (kind is tuple or kind is list) and self.input_key == 0 and batch:
            return batch[0]  # the common case, several times a step
        if isinstance(batch, Tensor):
            return batch
        return _get(batch, self.input_key, "input_key")

    def targets(self, batch: Any) -> Any:
        """Return the target of a batch."""
        if type(batch) is tuple and self.target_key == 1 and len(batch) == 2:
            return batch[1]
        return _get(batch, self.target_key, "target_key")

    def replace(self, batch: Any, **parts: Any) -> Any:
        """Return a new batch with `inputs=` or `targets=` replaced."""
        if "inputs" in parts:
            batch = _set(batch, self.input_key, parts["inputs"], "input_key")
        if "targets" in parts:
            batch = _set(batch, self.target_key, parts["targets"], "target_key")
        return batch


def _get(batch: Any, key: Any, argument: str) -> Any:
    kind = type(key)
    if kind is int and type(batch) is tuple and -len(batch) <= key < len(batch):
        return batch[key]
    if kind is int or kind is str:
        return _get_item(batch, key, argument)
    if callable(key):
        return key(batch)
    if _is_pair(key):
        return key[0](batch)
    for step in key:
        batch = _get_item(batch, step, argument)
    return batch


def _get_item(batch: Any, key: int | str, argument: str) -> Any:
    try:
        if isinstance(batch, Tensor):  # batch[1] would be an example, not a part
            raise TypeError
        if isinstance(key, str) and not isinstance(batch, Mapping):
            return getattr(batch, key)
        if hasattr(type(batch), "__missing__") and key not in batch:  # it would invent a value
            raise KeyError
        return batch[key]
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ValueError(
            f"{argument}={key!r} is not in the batch, which is {_describe(batch)}. "
            f"Pass the {argument} of your batches to the Trainer."
        ) from None


def _set(batch: Any, key: Any, value: Any, argument: str) -> Any:
    if _is_pair(key):
        return key[1](batch, value)
    if callable(key):
        raise ValueError(
            f"{argument}={key!r} can only read the batch, and an algorithm has to replace that "
            "part; pass a pair of functions (get, set), where set(batch, value) returns a new "
            "batch."
        )
    if not isinstance(key, (int, str)):
        first, *rest = key
        if rest:
            value = _set(_get_item(batch, first, argument), rest, value, argument)
        key = first
    return _set_item(batch, key, value, argument)


def _set_item(batch: Any, key: int | str, value: Any, argument: str) -> Any:
    if isinstance(batch, Mapping):
        _get_item(batch, key, argument)  # a new key would be added
        return rebuild_mapping(batch, {**batch, key: value})
    if _is_namedtuple(batch):
        name = key if isinstance(key, str) else batch._fields[key]
        return batch._replace(**{name: value})
    if isinstance(batch, (tuple, list)) and isinstance(key, int):
        items = list(batch)
        items[key] = value
        return type(batch)(items)
    if isinstance(key, str) and key in _fields(batch):
        return _rebuild(batch, {key: value})
    if isinstance(key, str) and hasattr(batch, key):
        new = copy.copy(batch)
        setattr(new, key, value)
        return new
    raise ValueError(
        f"{argument}={key!r} can't be replaced in {_describe(batch)}; pass a pair of functions "
        "(get, set), where set(batch, value) returns a new batch."
    )


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


def _is_pair(key: Any) -> bool:
    return isinstance(key, tuple) and len(key) == 2 and all(map(callable, key))


def _is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _describe(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return f"a tensor of shape {tuple(batch.shape)}"
    if isinstance(batch, Mapping):
        return f"a {type(batch).__name__} with the keys {list(batch)}"
    if isinstance(batch, (tuple, list)):
        return f"a {type(batch).__name__} of {len(batch)}"
    return f"a {type(batch).__name__}"


@_refuses_depth
def map_tensors(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Apply `function` to every tensor of a tree; other values are kept.

    Raises:
        ValueError: The tree is too deep for Python's recursion limit.

    Example:
        >>> from composable.core.batch import map_tensors
        >>> map_tensors(lambda t: t + 1, {"x": torch.zeros(1), "name": "a"})
        {'x': tensor([1.]), 'name': 'a'}
    """
    if not callable(function):
        raise TypeError(f"function must be a function of a tensor, not {kind_of(function)}.")
    return _map(function, tree)


def _map(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return function(tree)
    if type(tree) is tuple or type(tree) is list:  # almost every batch
        return type(tree)([_map(function, child) for child in tree])
    children = _children(tree)
    if children is None:
        return tree
    new = {name: _map(function, child) for name, child in children.items()}
    if all(new[name] is child for name, child in children.items()):
        return tree
    return _rebuild(tree, new)


def tensors_of(tree: Any) -> Iterator[Tensor]:
    """Iterate over the tensors of a tree."""
    if isinstance(tree, Tensor):
        yield tree
    else:
        for child in (_children(tree) or {}).values():
            yield from tensors_of(child)


def _children(tree: Any) -> Mapping[Any, Any] | None:
    if isinstance(tree, Mapping):
        return tree
    if isinstance(tree, (tuple, list)):
        return dict(enumerate(tree))
    return {name: getattr(tree, name) for name in _fields(tree)} or None


def _fields(tree: Any) -> Mapping[str, str]:
    """Return the constructor argument of each field of an attrs class or dataclass."""
    if attrs.has(type(tree)):
        return {field.name: field.alias for field in attrs.fields(type(tree)) if field.init}
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return {field.name: field.name for field in dataclasses.fields(tree) if field.init}
    return {}


def _rebuild(tree: Any, children: dict[Any, Any]) -> Any:
    if isinstance(tree, Mapping):
        return rebuild_mapping(tree, children)
    if _is_namedtuple(tree):
        return type(tree)(*children.values())
    if isinstance(tree, (tuple, list)):
        return type(tree)(children.values())
    names = _fields(tree)
    evolve = attrs.evolve if attrs.has(type(tree)) else dataclasses.replace
    return evolve(tree, **{names[name]: child for name, child in children.items()})


def count_examples(inputs: Any) -> int:
    """Count the examples: the first dimension of the first tensor of the input.

    Raises:
        ValueError: There is no tensor with a first dimension.
    """
    if isinstance(inputs, Tensor) and inputs.ndim:
        return inputs.size(0)
    count = _refuses_depth(_first_size)(inputs)
    if count is not None:
        return count
    raise ValueError(
        f"inputs is {_describe(inputs)}, without a tensor that has a batch dimension, so the "
        "examples of the batch cannot be counted. Check input_key."
    )


def _first_size(inputs: Any) -> int | None:
    return next((tensor.shape[0] for tensor in tensors_of(inputs) if tensor.ndim), None)


@_refuses_depth
def split_batch(batch: Any, sizes: Sequence[int]) -> list[Any]:
    """Split a batch along its first dimension.

    Tensors are split into views. Lists with one plain value (a string, a number) per example are
    split too, and so are tuples with one string per example, to which a DataLoader collates
    strings. Tuples of numbers, such as a size, tensors without dimensions and other values are
    part of every split.

    Args:
        batch: Any tree of tensors, each with `sum(sizes)` rows.
        sizes: The number of examples of each part.

    Raises:
        ValueError: A tensor has another number of rows; the message says where in the batch. Or
            the batch is too deep for Python's recursion limit.

    Example:
        >>> from composable.core.batch import split_batch
        >>> split_batch((torch.arange(3), ["a", "b", "c"]), [2, 1])
        [(tensor([0, 1]), ['a', 'b']), (tensor([2]), ['c'])]
    """
    check_size("sizes", sizes)
    return _split(batch, list(sizes), "batch")


def _split(tree: Any, sizes: list[int], place: str) -> list[Any]:
    count = sum(sizes)
    if isinstance(tree, Tensor):
        if not tree.ndim:
            return [tree] * len(sizes)
        if tree.shape[0] != count:
            raise ValueError(
                f"{place} has {tree.shape[0]} rows and the input has {count} examples, so the "
                "batch can't be split into microbatches: make every tensor of the batch have one "
                "row per example, or train without grad_accum and microbatch_size."
            )
        return list(torch.split(tree, sizes))
    if _is_column(tree, count):
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return [type(tree)(tree[start : start + n]) for start, n in zip(starts, sizes, strict=True)]
    children = _children(tree)
    if not children:
        return [tree] * len(sizes)
    parts = {name: _split(child, sizes, f"{place}[{name!r}]") for name, child in children.items()}
    return [
        _rebuild(tree, {name: part[i] for name, part in parts.items()}) for i in range(len(sizes))
    ]


@_refuses_depth
def select_examples(batch: Any, indices: Tensor, count: int) -> Any:
    """Select some examples of a batch.

    The rows of tensors and the items of lists that `split_batch` would split are selected. Tensors
    with another number of rows are kept whole. Selecting from a list makes the host wait for
    indices on a GPU; selecting from tensors does not.

    Args:
        batch: Any tree of tensors.
        indices: The examples to keep.
        count: The number of examples in the batch.

    Raises:
        ValueError: The batch is too deep for Python's recursion limit.

    Example:
        >>> from composable.core.batch import select_examples
        >>> batch = (torch.arange(3), ["a", "b", "c"])
        >>> select_examples(batch, torch.tensor([0, 2]), 3)
        (tensor([0, 2]), ['a', 'c'])
    """
    check_tensor("indices", indices)
    if indices.dtype != torch.int64 or indices.ndim != 1:
        raise ValueError(
            f"indices must be of dtype torch.int64 and of shape [kept], not {indices.dtype} and "
            f"{tuple(indices.shape)}; for a mask, pass mask.nonzero().flatten()."
        )
    check_count("count", count)
    return _select(batch, indices, count)


def _select(batch: Any, indices: Tensor, count: int) -> Any:
    if isinstance(batch, Tensor):
        return batch[indices] if batch.ndim and batch.shape[0] == count else batch
    if _is_column(batch, count):
        return type(batch)(batch[i] for i in indices.tolist())
    children = _children(batch)
    if not children:
        return batch
    new = {name: _select(child, indices, count) for name, child in children.items()}
    if all(new[name] is child for name, child in children.items()):
        return batch
    return _rebuild(batch, new)


def _is_column(tree: Any, count: int) -> bool:
    """Return whether it is a list of plain values, or a tuple of strings, one per example."""
    if not (isinstance(tree, list) or type(tree) is tuple) or len(tree) != count:
        return False
    plain = (str, bytes, int, float) if isinstance(tree, list) else (str, bytes)
    return all(isinstance(value, plain) for value in tree)


def microbatch_sizes(count: int, *, parts: int | None, size: int | None) -> list[int]:
    """Return the size of each microbatch: of `parts` equal ones, or of `size` and a remainder."""
    if size is None:
        size = -(-count // (parts or 1))
    if size >= count:
        return [count]
    return [min(size, count - start) for start in range(0, count, size)]


def to_device(batch: Any, device: torch.device) -> Any:
    """Move a batch to a device; for the CPU it is returned as it is, since loaders work there."""
    if device.type == "cpu":
        return batch
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), batch)
