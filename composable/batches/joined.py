"""Join the parts of a batch, or the outputs for them: the inverse of `split_batch`."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from composable._support.tree import children_of, map_tensors, rebuild, refuses_depth, tensors_of
from composable.batches.batch import describe_batch, is_column
from composable.functional.mixed import MixedTargets

__column_ = ["join_parts", "pad_parts"]

_PLAIN = (bool, int, float, str, bytes, type(None))


@refuses_depth
def join_parts(parts: Sequence[Any], sizes: Sequence[int], place: str = "batch") -> Any:
    """Concatenate the tensors of trees of one structure along their first dimension.

    Lists with one plain value for each example are joined too. Other values, and tensors without
    dimensions, must be equal in all parts. Weights of mixed targets become weights of examples.

    Args:
        parts: Trees of tensors, each with the same number of rows for each example.
        sizes: The number of examples of each part.
        place: The name of the trees, for messages.

    Raises:
        TypeError: A value is neither a tensor, a container of tensors, nor plain.
        ValueError: The parts have different structures, shapes or values; the message says where.

    Example:
        >>> from composable.batches.joined import join_parts
        >>> join_parts([(torch.zeros(2), ["a", "b"]), (torch.ones(1), ["c"])], [2, 1])
        (tensor([0., 0., 1.]), ['a', 'b', 'c'])
    """
    first = parts[0]
    if any(type(part) is not type(first) for part in parts):
        raise ValueError(f"{place} is of different types in the parts of a batch")
    if isinstance(first, Tensor):
        return _join_tensors(parts, sizes, place)
    if all(is_column(part, size) for part, size in zip(parts, sizes, strict=True)):
        return type(first)(chain(*parts))
    if isinstance(first, MixedTargets):
        parts = [_with_weights(part) for part in parts]
    columns = [children_of(part) for part in parts]
    if columns[0] is None:
        return _same(parts, place)
    names = columns[0].keys()
    if any(column is None or column.keys() != names for column in columns):
        raise ValueError(f"{place} has different entries in the parts of a batch")
    joined = {
        name: join_parts([one[name] for one in columns], sizes, f"{place}[{name!r}]")  # type: ignore[index]
        for name in names
    }
    return rebuild(first, joined)


def pad_parts(parts: Sequence[Any], value: float) -> list[Any]:
    """Pad the tensors of trees to equal sizes in all dimensions but the first.

    Example:
        >>> from composable.batches.joined import pad_parts
        >>> pad_parts([torch.ones(1, 1), torch.ones(1, 2)], -100)
        [tensor([[   1., -100.]]), tensor([[1., 1.]])]
    """
    columns = zip(*([one.shape[1:] for one in tensors_of(part)] for part in parts), strict=True)
    sizes = [[*map(max, zip(*column, strict=True))] for column in columns]
    return [_padded(part, iter(sizes), value) for part in parts]


def _padded(part: Any, sizes: Iterator[Sequence[int]], value: float) -> Any:
    def pad(tensor: Tensor) -> Tensor:
        new = tensor.new_full((*tensor.shape[:1], *next(sizes)), value)
        new[tuple(map(slice, tensor.shape))] = tensor
        return new

    return map_tensors(pad, part)


def _join_tensors(tensors: Sequence[Tensor], sizes: Sequence[int], place: str) -> Tensor:
    first = tensors[0]
    if not first.ndim:
        if all(one is first or (not one.ndim and torch.equal(one, first)) for one in tensors):
            return first
        raise ValueError(
            f"{place} is a tensor without dimensions, and differs between the parts of a batch"
        )
    rows = first.shape[0] // sizes[0]
    wanted = [(rows * size, *first.shape[1:]) for size in sizes]
    for tensor, shape in zip(tensors, wanted, strict=True):
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"{place} has the shape {tuple(tensor.shape)} in a part of a batch, where {shape} "
                "would be joined with the first part"
            )
    return torch.cat(list(tensors))


def _with_weights(mixed: MixedTargets) -> MixedTargets:
    """Return mixed targets with a weight for each example."""
    if mixed.weight.ndim:
        return mixed
    return mixed._replace(weight=mixed.weight.expand(len(mixed.targets)))


def _same(values: Sequence[Any], place: str) -> Any:
    first = values[0]
    if all(value is first for value in values):
        return first
    if not isinstance(first, _PLAIN):
        raise TypeError(f"{place} is {describe_batch(first)}, which can't be joined")
    if any(value != first for value in values):
        raise ValueError(f"{place} is not a tensor, and differs between the parts of a batch")
    return first
