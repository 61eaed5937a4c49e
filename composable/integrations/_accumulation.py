"""The microbatches of a step in an external loop."""

from collections.abc import Iterable
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from composable.engines.shares import factor_of_gradients
from composable.losses.part_weights import Weight


@attrs.define(eq=False)
class Accumulation:
    """The microbatches between two steps of the optimizer, each a batch of the loader.

    A loop divides the loss of each microbatch by `accumulate_batches`, as PyTorch's examples do. If
    microbatches differ in their weights, or the last step of an epoch has fewer of them, the sum is
    not the loss of the whole step. Its total weight is unknown until the last microbatch, so losses
    are weighted relative to the first one, and the gradients are rescaled in the end. What a loop
    logs and clips before that has the size of a mean.
    """

    accumulate_batches: int = 1
    """The number of microbatches of a step."""
    sizes: list[int] = attrs.field(factory=list)
    """The examples of each microbatch of this step, as the algorithms return it."""
    losses: list[Tensor] = attrs.field(factory=list)
    weights: list[Weight] = attrs.field(factory=list)
    """The weight of each microbatch."""

    @property
    def complete(self) -> bool:
        """Whether the step has all of its microbatches."""
        return len(self.sizes) >= self.accumulate_batches

    def start(self) -> None:
        """Start a step."""
        self.sizes, self.losses, self.weights = [], [], []

    def weigh(self, loss: Tensor, weight: Weight) -> Tensor:
        """Return the loss of the last microbatch, multiplied by its weight."""
        loss = weight.of_weight(loss)
        self.losses.append(loss.detach())
        self.weights.append(weight)
        if weight.value is None or len(self.sizes) == 1 == self.accumulate_batches:
            return loss
        return _times(loss, weight.factor / self._first)

    def loss(self) -> Tensor:
        """Return the loss of the whole step."""
        if len(self.losses) == 1:
            return self.losses[0]
        if self.weights[0].value is None:
            return torch.stack(self.losses).sum()
        total = self._total
        shares = (
            _times(loss, weight.factor / total)
            for loss, weight in zip(self.losses, self.weights, strict=True)
        )
        return sum(shares)  # type: ignore[return-value]

    @property
    def _first(self) -> Any:
        """The weight of the first microbatch, or its examples if it has no weight."""
        value = self.weights[0].value
        if isinstance(value, Tensor):
            return value.masked_fill(value == 0, self.sizes[0])
        return value or self.sizes[0]

    @property
    def _total(self) -> Any:
        return sum(one.value for one in self.weights)

    def rescale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Turn the accumulated gradients into those of the loss of the whole step."""
        if len(self.sizes) == 1 == self.accumulate_batches:
            return
        factor: Any = self.accumulate_batches
        if self.weights[0].value is not None:
            factor = factor_of_gradients(factor * self._first / self._total)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if gradients and not (isinstance(factor, (int, float)) and factor == 1):
            torch._foreach_mul_(gradients, factor)


def _times(loss: Tensor, factor: Any) -> Tensor:
    """Multiply a loss, in its dtype; where the factor is 0, the loss may be NaN."""
    if not isinstance(factor, Tensor):
        return loss if factor == 1 else loss * factor
    product = loss * factor.to(loss)
    return torch.where(factor == 0, torch.zeros_like(product), product)
