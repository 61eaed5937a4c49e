"""Reading, rebuilding and splitting batches of any structure.

A batch is a tree: tensors in tuples, lists, dictionaries, named tuples, attrs classes and
dataclasses. Batches are never changed in place: a changed tree is a new tree.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from composable._support.checks import check_count, check_size, check_tensor
from composable._support.tree import children_of, map_tensors, rebuild, refuses_depth, tensors_of


def describe_batch(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return f"a tensor of shape {tuple(batch.shape)}"
    if isinstance(batch, Mapping):
        return f"a {type(batch).__name__} with the keys {list(batch)}"
    if isinstance(batch, (tuple, list)):
        return f"a {type(batch).__name__} of {len(batch)}"
    return f"a {type(batch).__name__}"


def count_examples(inputs: Any) -> int:
    """Count the examples: the first dimension of the first tensor of the input.

    Raises:
        ValueError: There is no tensor with a first dimension.
    """
    if isinstance(inputs, Tensor) and inputs.ndim:
        return inputs.size(0)
    count = refuses_depth(first_size)(inputs)
    if count is not None:
        return count
    raise ValueError(
        f"inputs is {describe_batch(inputs)}, without a tensor that has a batch dimension, so the "
        "examples of the batch cannot be counted. Check input_key, and that the loader returns "
        "tensors, such as torch.from_numpy(array)."
    )


def first_size(inputs: Any) -> int | None:
    return next((tensor.shape[0] for tensor in tensors_of(inputs) if tensor.ndim), None)


@refuses_depth
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
        >>> from composable.batches.batch import split_batch
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
    if is_column(tree, count):
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return [type(tree)(tree[start : start + n]) for start, n in zip(starts, sizes, strict=True)]
    children = children_of(tree)
    if not children:
        return [tree] * len(sizes)
    parts = {name: _split(child, sizes, f"{place}[{name!r}]") for name, child in children.items()}
    return [
        rebuild(tree, {name: part[i] for name, part in parts.items()}) for i in range(len(sizes))
    ]


@refuses_depth
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
        >>> from composable.batches.batch import select_examples
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
    if is_column(batch, count):
        return type(batch)(batch[i] for i in indices.tolist())
    children = children_of(batch)
    if not children:
        return batch
    new = {name: _select(child, indices, count) for name, child in children.items()}
    if all(new[name] is child for name, child in children.items()):
        return batch
    return rebuild(batch, new)


def is_column(tree: Any, count: int) -> bool:
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
