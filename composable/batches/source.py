"""Where a tensor comes from in a batch: from one of its tensors, by functions of that one alone.

A loss may take its targets as they are in the batch, or a column of them, or a mask of those with a
label. What it counts in them can then be counted in every other part of the batch, too, before the
loss of that part is computed.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import attrs
import torch
from torch import Tensor

from composable._support.tree import children_of

__all__ = ["Source", "Sources"]

Step: TypeAlias = tuple[Any, tuple[Any, ...], tuple[tuple[str, Any], ...]]


@attrs.frozen
class Source:
    """A tensor of a batch, and the functions that were applied to it.

    Example:
        >>> from composable.batches.source import Source
        >>> columns = Source((1,), ((torch.Tensor.__getitem__, ((..., 0),), ()),))
        >>> columns.of((torch.zeros(2), torch.tensor([[1, 2], [3, 4]])))
        tensor([1, 3])
    """

    path: tuple[Any, ...]
    """The keys from the batch to its tensor."""
    steps: tuple[Step, ...] = ()
    """Functions with their other arguments, apart from those that only change the shape."""
    reshaped: bool = attrs.field(default=False, eq=False)
    """Whether the shape was changed, so that positions are other ones."""
    by_rows: bool = True
    """Whether each row is computed from its own: those of a part are those in the whole."""

    @property
    def is_of_any_size(self) -> bool:
        """Whether no number in the steps may be a size, which other parts of a batch don't have."""
        return all(
            constant in _CONSTANTS
            for _, args, kwargs in self.steps
            for constant in _integers_in((args, kwargs))
        )

    def of(self, batch: Any) -> Tensor:
        """Compute the tensor for another batch.

        Raises:
            LookupError: The batch has another structure.
        """
        for key in self.path:
            batch = (children_of(batch) or {})[key]
        for function, args, kwargs in self.steps:
            batch = function(batch, *args, **dict(kwargs))
        return batch  # type: ignore[no-any-return]


class Sources:
    """The tensors of a batch, and those that are computed from one of them.

    Args:
        batch: The batch.
    """

    def __init__(self, batch: Any) -> None:
        self._known: dict[int, tuple[Tensor, int, Source]] = {}
        for path, tensor in _tensors_in(batch):
            self._record(tensor, Source(path))

    def of(self, value: Any) -> Source | None:
        """Return the source of a tensor, or None if it is not known to have one."""
        held = self._known.get(id(value))
        if held is None or held[0] is not value or held[1] != value._version:
            return None
        return held[2]

    def follow(self, function: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Record the result of a function whose first argument has a source."""
        source = self.of(args[0]) if args else None
        if source is None or result is args[0] or not isinstance(result, Tensor):
            return
        if name in _RESHAPING and result.dtype == args[0].dtype:
            self._record(result, attrs.evolve(source, reshaped=True))
        elif name in _OF_ELEMENTS or (name in _OF_POSITIONS and not source.reshaped):
            step = function, args[1:], tuple(kwargs.items())
            if _is_plain(step[1:]):
                by_rows = source.by_rows and (name in _OF_ELEMENTS or _keeps_rows(name, args))
                steps = (*source.steps, step)
                self._record(result, attrs.evolve(source, steps=steps, by_rows=by_rows))

    def _record(self, tensor: Tensor, source: Source) -> None:
        self._known[id(tensor)] = tensor, tensor._version, source


_RESHAPING = frozenset(
    ("clone", "contiguous", "detach", "flatten", "reshape", "squeeze", "unsqueeze", "view")
)
_OF_POSITIONS = frozenset(("__getitem__", "narrow", "pad", "select"))
_OF_ELEMENTS = frozenset(
    (
        *("to", "bool", "int", "long", "half", "bfloat16", "float", "double", "type"),
        *("clamp", "clip", "clamp_min", "clamp_max", "__invert__", "logical_not", "bitwise_not"),
        *("eq", "ne", "gt", "ge", "lt", "le", "__eq__", "__ne__", "__rsub__"),
    )
)
FOLLOWED = _RESHAPING | _OF_POSITIONS | _OF_ELEMENTS
"""The names of the functions that are followed."""
_CONSTANTS = (-100, -1, 0, 1)
"""Arguments of functions of labels that shift and ignore; others may be sizes of one batch."""


def _keeps_rows(name: str, args: tuple[Any, ...]) -> bool:
    """Return whether an index leaves the first dimension as it is, which examples have."""
    if name != "__getitem__":
        return False
    items = args[1] if isinstance(args[1], tuple) else (args[1],)
    if not all(isinstance(one, (slice, type(...))) or type(one) is int for one in items):
        return False
    if items[:1] == (...,):
        return len(items) <= int(args[0].ndim)
    return items[:1] == (slice(None),)


def _integers_in(value: Any) -> list[int]:
    if isinstance(value, slice):
        value = value.start, value.stop, value.step
    if isinstance(value, (tuple, list)):
        return [one for item in value for one in _integers_in(item)]
    return [value] if isinstance(value, int) else []


def _tensors_in(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    if isinstance(tree, Tensor):
        yield path, tree
    else:
        for key, child in (children_of(tree) or {}).items():
            yield from _tensors_in(child, (*path, key))


def _is_plain(value: Any) -> bool:
    """Return whether a value contains no tensor, which may depend on anything."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, slice):
        return _is_plain((value.start, value.stop, value.step))
    plain = (int, float, str, type(None), type(...), torch.dtype, torch.device)
    return isinstance(value, (*plain, torch.memory_format))
