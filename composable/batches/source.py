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
    """Whether each row is computed from one row, so that a part has the same rows as the whole."""

    @property
    def is_of_any_size(self) -> bool:
        """Whether no number in the steps may be a size, which other parts of a batch don't have."""
        return all(
            leaf in _CONSTANTS
            for _, *arguments in self.steps
            for leaf in _leaves(arguments)
            if isinstance(leaf, int)
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


class Noted:
    """What is noted of tensors, by identity, until they are changed in place."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Tensor, int, Any]] = {}

    def note(self, tensor: Tensor, what: Any) -> None:
        """Note something of a tensor."""
        self._held[id(tensor)] = tensor, tensor._version, what

    def of(self, value: Any) -> Any:
        """Return what is noted of a tensor, or None."""
        held = self._held.get(id(value))
        if held is None or held[0] is not value or held[1] != value._version:
            return None
        return held[2]


class Sources(Noted):
    """The tensors of a batch, and those that are computed from one of them.

    Args:
        batch: The batch.
    """

    def __init__(self, batch: Any) -> None:
        super().__init__()
        self._note_all(batch)

    def _note_all(self, tree: Any, path: tuple[Any, ...] = ()) -> None:
        if isinstance(tree, Tensor):
            self.note(tree, Source(path))
        else:
            for key, child in (children_of(tree) or {}).items():
                self._note_all(child, (*path, key))

    def follow(self, function: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Record the result of a function whose first argument has a source."""
        source = self.of(args[0]) if args else None
        if source is None or result is args[0] or not isinstance(result, Tensor):
            return
        if name in _RESHAPING and result.dtype == args[0].dtype:
            self.note(result, attrs.evolve(source, reshaped=True))
        elif name in _OF_ELEMENTS or (name in _OF_POSITIONS and not source.reshaped):
            step = function, args[1:], tuple(kwargs.items())
            if all(isinstance(leaf, _PLAIN) for leaf in _leaves(step[1:])):
                by_rows = source.by_rows and (name in _OF_ELEMENTS or _keeps_rows(name, args))
                steps = (*source.steps, step)
                self.note(result, attrs.evolve(source, steps=steps, by_rows=by_rows))


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
_PLAIN = int, float, str, type(None), type(...), torch.dtype, torch.device, torch.memory_format
"""Types of arguments that hold no tensor, which may depend on anything."""
_CONSTANTS = (-100, -1, 0, 1)
"""Arguments of functions of labels that shift and ignore; others may be sizes of one batch."""


def _keeps_rows(name: str, args: tuple[Any, ...]) -> bool:
    """Return whether an index leaves the first dimension as it is, which examples have."""
    if name != "__getitem__":
        return False
    items = args[1] if isinstance(args[1], tuple) else (args[1],)
    if not all(isinstance(item, (slice, type(...))) or type(item) is int for item in items):
        return False
    if items[:1] == (...,):
        return len(items) <= int(args[0].ndim)
    return items[:1] == (slice(None),)


def _leaves(value: Any) -> Iterator[Any]:
    """Yield what is in tuples, lists, dictionaries and slices."""
    if isinstance(value, slice):
        value = value.start, value.stop, value.step
    if isinstance(value, Mapping):
        value = [*value.values()]
    if isinstance(value, (tuple, list)):
        for one in value:
            yield from _leaves(one)
    else:
        yield value
