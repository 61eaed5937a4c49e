"""Parts of a run that a checkpoint saves, and the types of what they save."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Protocol, runtime_checkable

import attrs
from torch import Tensor

__all__ = [
    "ChecksState",
    "Count",
    "Factor",
    "Kind",
    "Number",
    "Size",
    "Stateful",
    "is_count",
    "is_number",
]


class Stateful(Protocol):
    """A part of a run that a checkpoint saves, by the protocol of `torch.nn.Module`.

    The type that `state_dict` is declared to return, a `TypedDict`, is the structure with which a
    checkpoint is compared before anything is changed.
    """

    def state_dict(self) -> Mapping[str, Any]:
        """Return what the part must remember: plain containers and tensors."""

    def load_state_dict(self, state: Any, /) -> None:
        """Restore what `state_dict` returned."""


@runtime_checkable
class ChecksState(Protocol):
    """A part that compares a saved state with itself, before any part is restored."""

    def check_state_dict(self, state: Any, where: str, /) -> None:
        """Check that a state, which has the declared structure, fits the part as it is.

        Args:
            state: What `state_dict` returned.
            where: The file and the path in it, for errors.

        Raises:
            CheckpointError: It does not fit.
        """


@attrs.frozen
class Kind:
    """What a saved value must be, in words and as a test: the metadata of an annotated type."""

    name: str
    fits: Callable[[Any], bool]


def is_count(value: Any) -> bool:
    """Return whether a value is a non-negative integer of 53 bits."""
    return type(value) is int and 0 <= value < 2**53


def is_number(value: Any) -> bool:
    """Return whether a value is a number, or a tensor of one."""
    single = isinstance(value, Tensor) and value.numel() == 1
    return single or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _is_size(value: Any) -> bool:
    return value is None or (is_count(value) and value > 0)


def _is_factor(value: Any) -> bool:
    return value is None or (isinstance(value, float) and 0 < value < 2.0**128)


Count = Annotated[int, Kind("a non-negative integer", is_count)]
Number = Annotated[Any, Kind("a number", is_number)]
Size = Annotated[int | None, Kind("a positive integer or None", _is_size)]
Factor = Annotated[float | None, Kind("a positive number or None", _is_factor)]
