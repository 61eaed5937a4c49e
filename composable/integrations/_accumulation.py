"""The microbatches of a step in an external loop."""

from collections.abc import Iterable

import attrs
import torch
from torch import Tensor, nn

__all__ = ["Accumulation"]


@attrs.define(eq=False)
class Accumulation:
    """The microbatches between two steps of the optimizer, each a batch of the loader.

    A loop divides the loss of each microbatch by `accumulate_batches`, as PyTorch's examples do. If
    microbatches differ in size, or the last step of an epoch has fewer of them, the sum is not the
    mean over the examples. The size of a step is unknown until its last microbatch, so losses are
    weighted relative to the first one, and the gradients are rescaled in the end.
    """

    accumulate_batches: int = 1
    """The number of microbatches of a step."""
    sizes: list[int] = attrs.field(factory=list)
    """The examples of each microbatch of this step, as the algorithms return it."""
    losses: list[Tensor] = attrs.field(factory=list)

    @property
    def complete(self) -> bool:
        """Whether the step has all of its microbatches."""
        return len(self.sizes) >= self.accumulate_batches

    def start(self) -> None:
        """Start a step."""
        self.sizes, self.losses = [], []

    def weigh(self, loss: Tensor) -> Tensor:
        """Return the loss of the last microbatch, weighted by its examples."""
        self.losses.append(loss.detach())
        weight = self.sizes[-1] / self.sizes[0]
        return loss if weight == 1 else loss * weight

    def mean_loss(self) -> Tensor:
        """Return the mean loss over the examples of the step."""
        if len(self.losses) == 1:
            return self.losses[0]
        shares = [size / sum(self.sizes) for size in self.sizes]
        return sum(loss * share for loss, share in zip(self.losses, shares, strict=True))  # type: ignore[return-value]

    def rescale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Turn the accumulated gradients into those of the mean loss."""
        factor = self.accumulate_batches * self.sizes[0] / sum(self.sizes)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if factor != 1 and gradients:
            torch._foreach_mul_(gradients, factor)
