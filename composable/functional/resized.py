"""The result of `resize_batch` and of similar methods."""

from typing import NamedTuple

from torch import Tensor

__all__ = ["ResizedBatch"]


class ResizedBatch(NamedTuple):
    """A batch whose inputs are smaller.

    Attributes:
        inputs: The smaller inputs.
        targets: The targets of these inputs, or None if none were given.
    """

    inputs: Tensor
    targets: Tensor | None
