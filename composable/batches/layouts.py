"""Batches of lists, with one item for each example: how they are recognized, and what is split."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from composable._support.tree import children_of, rebuild, refuses_depth, tensors_of
from composable.batches.batch import describe_batch, first_size

LAYOUTS = ("tensors", "lists", "examples")
Path: TypeAlias = tuple[Any, ...]


def is_list(value: Any) -> bool:
    """Return whether a value is a list or a tuple without names."""
    return isinstance(value, list) or type(value) is tuple


def infer_layout(inputs: Any, targets: Any) -> str:
    """Return "lists" if input and target are lists with one item per example, or "tensors".

    Raises:
        ValueError: They have both readings.
    """
    items = length_of(inputs)
    if not (is_list(inputs) or is_list(targets)) or not items or items != length_of(targets):
        return "tensors"
    rows = {tensor.shape[0] for tensor in tensors_of(inputs) if tensor.ndim}
    target_rows = {tensor.shape[0] for tensor in tensors_of(targets) if tensor.ndim}
    objects = is_list(targets) and all(isinstance(target, Mapping) for target in targets)
    if objects and is_list(inputs):
        return "lists"
    if rows and target_rows and len(rows | target_rows) == 1:
        if not objects:
            return "tensors"
    elif not rows or not is_list(inputs):
        return "lists"
    elif first_size(inputs) == (first_size(targets) if target_rows else items):
        return "tensors"
    raise ValueError(
        f"the input of the batch is {describe_batch(inputs)} and its target "
        f"{describe_batch(targets)}: they may have one item for each example, or tensors with one "
        "row; pass batch_layout='lists' to the Trainer for items, or 'tensors' for rows."
    )


def length_of(value: Any) -> int | None:
    """Return the number of items of a list, or of rows of a tensor; None for other values."""
    if isinstance(value, Tensor):
        return value.shape[0] if value.ndim else None
    return len(value) if is_list(value) else None


@refuses_depth
def map_columns(
    tree: Any, function: Callable[[Any], Any], count: int, paths: Sequence[Path], place: str
) -> Any:
    """Apply a function to all columns below a container.

    Columns are input, target, and other lists and tensors with an item for each example, except for
    tuples of numbers, such as a size.

    Args:
        tree: The container.
        function: Applied to each column.
        count: The number of examples.
        paths: The steps to input and target, through other containers.
        place: The name of the container, for errors.

    Raises:
        ValueError: The input, the target or a tensor has another length.
    """
    children = children_of(tree)
    if children is None:
        return tree
    new = {}
    for name, child in children.items():
        ahead = [path[1:] for path in paths if path and _leads_to(path[0], name, tree)]
        length, inner = length_of(child), f"{place}[{name!r}]"
        if any(ahead) or length is None:
            new[name] = map_columns(child, function, count, ahead, inner)
        elif length == count and (ahead or not _is_size(child)):
            new[name] = function(child)
        elif ahead or isinstance(child, Tensor):
            raise ValueError(
                f"{inner} has {length} items and the input has {count} examples, so the batch "
                "can't be split: return one item for each example from collate_fn."
            )
        else:
            new[name] = child
    return rebuild(tree, new)


def _leads_to(step: Any, name: Any, tree: Any) -> bool:
    from_end = is_list(tree) and isinstance(step, int) and step + len(tree) == name
    return bool(step == name or from_end)


def _is_size(value: Any) -> bool:
    return type(value) is tuple and all(isinstance(number, (int, float)) for number in value)
