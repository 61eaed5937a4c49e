"""The parts of a batch: which is the input, which is the target, and what the examples are."""

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Any

import attrs
from torch import Tensor

from composable._support.checks import check_one_of
from composable._support.tree import fields_of, is_namedtuple, rebuild, rebuild_mapping
from composable.batches.batch import (
    count_examples,
    describe_batch,
    first_size,
    select_examples,
    split_batch,
)
from composable.batches.layouts import LAYOUTS, infer_layout, is_list, length_of, map_columns


def _check_key(_: object, attribute: "attrs.Attribute[Any]", key: Any) -> None:
    if not (_is_key(key) or _is_several(key)):
        raise TypeError(
            f"{attribute.name}={key!r} must be an index (0), a name ('image'), a path of these "
            "(['views', 0]), a function that reads the part, a pair of functions (get, set), or a "
            "tuple of several of these."
        )


def _is_key(key: Any) -> bool:
    path = isinstance(key, list) and key and all(map(_is_step, key))
    return bool(_is_step(key) or path or callable(key) or _is_pair(key))


def _is_several(key: Any) -> bool:
    return isinstance(key, tuple) and bool(key) and not _is_pair(key) and all(map(_is_key, key))


def _is_step(key: Any) -> bool:
    return isinstance(key, (int, str)) and not isinstance(key, bool)


def _check_layout(_: object, attribute: "attrs.Attribute[Any]", layout: Any) -> None:
    if layout is not None:
        check_one_of(attribute.name, layout, LAYOUTS)


@attrs.frozen
class BatchSpec:
    """Which part of a batch is the input, which is the target, and what its examples are.

    Args:
        input_key: An index (`0`), a name (`"image"`), a path (`["views", 0]`), a function that
            returns the part, or a pair of functions `(get, set)` where `set(batch, value)`
            returns a new batch. Or a tuple of these, for several inputs: a model is called with
            each of them as an argument.
        target_key: Likewise, for the target.
        batch_layout: "tensors": each tensor has one row for each example. "lists": the input and
            the target have one item for each example; at least one of them is a list. "examples":
            the batch is a list of examples, and the keys apply to an example. Default: determined
            by the batch.

    Raises:
        TypeError: A key is of another type.
        ValueError: The layout is unknown.

    Example:
        >>> from composable.batches.spec import BatchSpec
        >>> spec = BatchSpec("image", "label")
        >>> batch = {"image": torch.zeros(2), "label": torch.tensor([0, 1])}
        >>> spec.targets(batch)
        tensor([0, 1])
        >>> spec.replace(batch, targets="new")["label"], batch["label"]
        ('new', tensor([0, 1]))
        >>> spec.targets(
        ...     [{"image": torch.zeros(3), "label": 1}, {"image": torch.ones(2), "label": 0}]
        ... )
        [1, 0]
    """

    input_key: Any = attrs.field(default=0, validator=_check_key)
    target_key: Any = attrs.field(default=1, validator=_check_key)
    batch_layout: str | None = attrs.field(default=None, validator=_check_layout)

    @property
    def has_several_inputs(self) -> bool:
        """Whether the input is a tuple of several parts of the batch."""
        return type(self.input_key) is tuple and not _is_pair(self.input_key)

    @property
    def target_names(self) -> tuple[str, ...]:
        """The names of the targets that are entries of a batch."""
        keys = self.target_key if isinstance(self.target_key, tuple) else (self.target_key,)
        return tuple(key for key in keys if isinstance(key, str))

    def inputs(self, batch: Any) -> Any:
        """Return the input of a batch; a batch that is a tensor is its own input."""
        kind = type(batch)
        plain = (kind is tuple or kind is list) and self.batch_layout != "examples"
        if plain and self.input_key == 0 and batch:
            return batch[0]  # the common case, several times a step
        if isinstance(batch, Tensor) and not self.has_several_inputs:
            return batch
        return self._get(batch, self.input_key, "input_key")

    def targets(self, batch: Any) -> Any:
        """Return the target of a batch."""
        plain = type(batch) is tuple and self.batch_layout != "examples"
        if plain and self.target_key == 1 and len(batch) == 2:
            return batch[1]
        return self._get(batch, self.target_key, "target_key")

    def targets_or_none(self, batch: Any) -> Any:
        """Return the target of a batch; None if it has none."""
        try:
            return self.targets(batch)
        except ValueError:
            return None

    def replace(self, batch: Any, **parts: Any) -> Any:
        """Return a new batch with `inputs=` or `targets=` replaced."""
        keys = {"inputs": self.input_key, "targets": self.target_key}
        plain = type(batch) is tuple and len(batch) > 1 and self.batch_layout != "examples"
        if plain and self.input_key == 0 and self.target_key == 1:
            items = list(batch)  # the common case, several times a step
            for part, value in parts.items():
                items[keys[part]] = value
            return tuple(items)
        for part, value in parts.items():
            batch = self._set(batch, keys[part], value, f"{part[:-1]}_key")
        return batch

    def count(self, batch: Any) -> int:
        """Count the examples of a batch.

        Raises:
            ValueError: The batch has no examples that can be counted, or it has two readings with
                different numbers of examples.
        """
        if type(batch) is tuple and batch:  # the common case, at every step
            plain = self.input_key == 0 and self.batch_layout != "examples"
            inputs = batch[0] if plain else self.inputs(batch)
            if type(inputs) is Tensor and inputs.ndim:
                return inputs.size(0)
        if self.has_examples(batch):
            return len(batch)
        inputs = self.inputs(batch)
        first = inputs[0] if self.has_several_inputs else inputs
        if is_list(first) and self.layout_of(batch, counted=True) == "lists":
            return len(first)
        return count_examples(inputs)

    def split(self, batch: Any, sizes: Sequence[int]) -> list[Any]:
        """Split a batch into microbatches of these sizes.

        Raises:
            ValueError: A part of the batch has another number of examples, or the batch has two
                readings, which split differently.
        """
        layout = self.layout_of(batch)
        if layout == "tensors":
            return split_batch(batch, sizes)
        ends = list(accumulate(sizes))
        parts = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        if layout == "examples":
            return [batch[part] for part in parts]
        return [self._map_columns(batch, itemgetter(part), ends[-1]) for part in parts]

    def select(self, batch: Any, indices: Tensor) -> Any:
        """Select some examples of a batch."""
        count, layout = self.count(batch), self.layout_of(batch)
        if layout == "tensors":
            return select_examples(batch, indices, count)

        def selected(column: Any) -> Any:
            if isinstance(column, Tensor):
                return column[indices]
            return type(column)(column[i] for i in indices.tolist())

        return (
            selected(batch) if layout == "examples" else self._map_columns(batch, selected, count)
        )

    def has_examples(self, batch: Any) -> bool:
        """Return whether a batch is a list of examples: by its layout, or since they have names."""
        if self.batch_layout is not None:
            return self.batch_layout == "examples"
        if not is_list(batch) or not batch or is_list(batch[0]) or isinstance(batch[0], Tensor):
            return False
        paths = _paths(self.input_key)
        return bool(paths) and all(isinstance(path[0], str) for path in paths)

    def layout_of(self, batch: Any, *, counted: bool = False) -> str:
        """Return the layout of a batch; with `counted`, one that counts the examples as it does."""
        if self.has_examples(batch):
            return "examples"
        if self.batch_layout is not None:
            return self.batch_layout
        try:
            inputs, targets = self.inputs(batch), self.targets(batch)
        except ValueError:  # without a target
            return "tensors"
        first = inputs[0] if self.has_several_inputs else inputs
        if counted and first_size(first) == length_of(first):
            return "tensors"
        return infer_layout(first, targets[0] if _is_several(self.target_key) else targets)

    def _get(self, batch: Any, key: Any, argument: str) -> Any:
        if not self.has_examples(batch):
            return _get(batch, key, argument)
        self._check_examples(batch)
        if _is_several(key):
            return tuple(self._get(batch, one, argument) for one in key)
        return [_get(example, key, argument) for example in batch]

    def _set(self, batch: Any, key: Any, value: Any, argument: str) -> Any:
        if not self.has_examples(batch):
            return _set(batch, key, value, argument)
        self._check_examples(batch)
        if _is_several(key):
            for one, part in zip(key, value, strict=True):
                batch = self._set(batch, one, part, argument)
            return batch
        if len(value) != len(batch):
            raise ValueError(
                f"{argument}={key!r} can't be replaced by {len(value)} values in {len(batch)} "
                "examples; return a batch of tensors from collate_fn for methods that change the "
                "number of examples."
            )
        pairs = zip(batch, value, strict=True)
        return type(batch)(_set(example, key, one, argument) for example, one in pairs)

    def _check_examples(self, batch: Any) -> None:
        if not is_list(batch):
            raise ValueError(
                f"batch_layout='examples' needs batches that are lists of examples, not "
                f"{describe_batch(batch)}; pass 'tensors' or 'lists', or None to determine it."
            )

    def _map_columns(self, batch: Any, function: Callable[[Any], Any], count: int) -> Any:
        """Apply a function to all columns of a batch of lists, which have an item per example."""
        paths = [*_paths(self.input_key), *_paths(self.target_key)]
        return map_columns(batch, function, count, paths, "batch")


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
    if kind is tuple:
        return tuple(_get(batch, one, argument) for one in key)
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
        pair = "; one batch is a list of one pair, [(inputs, targets)]"
        raise ValueError(
            f"{argument}={key!r} is not in the batch, which is {describe_batch(batch)}. Pass the "
            f"{argument} of your batches to the Trainer{pair * isinstance(batch, Tensor)}."
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
    if isinstance(key, tuple):
        for one, part in zip(key, value, strict=True):
            batch = _set(batch, one, part, argument)
        return batch
    if not isinstance(key, (int, str)):
        first, *rest = key
        if rest:
            value = _set(_get_item(batch, first, argument), rest, value, argument)
        key = first
    return _set_item(batch, key, value, argument)


def _set_item(batch: Any, key: int | str, value: Any, argument: str) -> Any:
    if isinstance(batch, (Mapping, tuple, list)):
        _get_item(batch, key, argument)  # a new key would be added to a mapping
    if isinstance(batch, Mapping):
        return rebuild_mapping(batch, {**batch, key: value})
    if is_namedtuple(batch):
        name = key if isinstance(key, str) else batch._fields[key]
        return batch._replace(**{name: value})
    if isinstance(batch, (tuple, list)) and isinstance(key, int):
        items = list(batch)
        items[key] = value
        return type(batch)(items)
    if isinstance(key, str) and key in fields_of(batch):
        return rebuild(batch, {key: value})
    if isinstance(key, str) and hasattr(batch, key):
        new = copy.copy(batch)
        setattr(new, key, value)
        return new
    raise ValueError(
        f"{argument}={key!r} can't be replaced in {describe_batch(batch)}; pass a pair of "
        "functions (get, set), where set(batch, value) returns a new batch."
    )


def _paths(key: Any) -> list[tuple[Any, ...]]:
    """Return the steps from the batch to a part, or to several; none for a function."""
    if callable(key) or _is_pair(key):
        return []
    if isinstance(key, tuple):
        return [path for one in key for path in _paths(one)]
    return [tuple(key) if isinstance(key, list) else (key,)]


def _is_pair(key: Any) -> bool:
    return isinstance(key, tuple) and len(key) == 2 and all(map(callable, key))
