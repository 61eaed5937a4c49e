"""The results of `resize_batch` and of similar methods: a tensor for a tensor, or a batch."""

from collections.abc import Callable
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, cast, overload, runtime_checkable

from torch import Tensor

__all__ = ["ResizedBatch"]

P = ParamSpec("P")


class ResizedBatch(NamedTuple):
    """A batch whose inputs are smaller.

    Attributes:
        inputs: The smaller inputs.
        targets: The targets of these inputs, or None if none were given.
    """

    inputs: Tensor
    targets: Tensor | None


@runtime_checkable
class Resizing(Protocol[P]):
    """A function that returns a tensor for inputs alone, and a batch for inputs and targets."""

    @overload
    def __call__(
        self, inputs: Tensor, targets: None = None, *_: P.args, **__: P.kwargs
    ) -> Tensor: ...
    @overload
    def __call__(
        self, inputs: Tensor, targets: Tensor, *_: P.args, **__: P.kwargs
    ) -> ResizedBatch: ...


def resizing(
    function: Callable[Concatenate[Tensor, Tensor | None, P], Tensor | ResizedBatch],
) -> Resizing[P]:
    """Let type checkers know that the type of a result follows from the targets."""
    return cast(Resizing[P], function)
