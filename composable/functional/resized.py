"""The result of making inputs smaller: `resize_batch`, and others like it."""

from typing import NamedTuple

from torch import Tensor

__all__ = ["ResizedBatch"]


class ResizedBatch(NamedTuple):
    """A batch whose inputs are smaller.

    Attributes:
        inputs: The smaller inputs.
        targets: The targets that belong to them, or None where none were given.
    """

    inputs: Tensor
    targets: Tensor | None
