"""The loss of a batch: its computation, per example, and its weight in an accumulated batch."""

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from composable.core.batch import BatchSpec, count_examples, map_tensors

__all__ = ["ModelLoss", "TargetLoss", "check_loss", "count_loss_tokens"]


@attrs.frozen
class TargetLoss:
    """A loss function of outputs and targets as a function of outputs and a batch."""

    function: Callable[[Any, Any], Tensor]
    spec: BatchSpec

    def __call__(self, outputs: Any, batch: Any) -> Tensor:
        """Compute the loss."""
        return self.function(outputs, self.spec.targets(batch))

    def per_example(self, outputs: Any, batch: Any) -> Tensor:
        """Compute the loss of each example."""
        targets = self.spec.targets(batch)
        unreduced = _unreduced(self.function)
        if unreduced is not None:
            losses = unreduced(outputs, targets)
            return losses.flatten(1).mean(1) if losses.ndim > 1 else losses
        return _one_by_one(self.function, outputs, targets)


@attrs.frozen
class ModelLoss:
    """The loss of a model that defines `loss(outputs, batch)`."""

    model: nn.Module

    def __call__(self, outputs: Any, batch: Any) -> Tensor:
        """Compute the loss."""
        return self.model.loss(outputs, batch)  # type: ignore[operator, no-any-return]

    def per_example(self, outputs: Any, batch: Any) -> Tensor:
        """Compute the loss of each example."""
        return _one_by_one(self.model.loss, outputs, batch)  # type: ignore[arg-type]


def _unreduced(function: Callable[..., Tensor]) -> Callable[..., Tensor] | None:
    """Return the loss without its reduction, or None if it has no `reduction` option."""
    if isinstance(function, nn.Module):
        if not hasattr(function, "reduction"):
            return None
        bare = copy.copy(function)
        bare.reduction = "none"  # type: ignore[assignment]
        return bare
    try:
        offers = "reduction" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    return partial(function, reduction="none") if offers else None


def _one_by_one(function: Callable[..., Tensor], outputs: Any, rest: Any) -> Tensor:
    """Compute the loss of each example by a vectorized call on batches of one."""

    def of_one(output: Any, other: Any) -> Tensor:
        lone = partial(map_tensors, lambda tensor: tensor.unsqueeze(0))
        return function(lone(output), lone(other))

    return torch.func.vmap(of_one)(outputs, rest)


def count_loss_tokens(targets: Any, ignore_index: int = -100) -> Tensor:
    """Count the targets other than `ignore_index`, as a tensor on their device."""
    if not isinstance(targets, Tensor):
        raise TypeError(
            "loss_mean_over='tokens' needs targets that are a tensor; got "
            f"{type(targets).__name__}; pass a function of the batch that counts them instead."
        )
    if type(ignore_index) is not int:
        raise TypeError(f"ignore_index={ignore_index!r} must be an integer.")
    return (targets != ignore_index).sum()


def weigher(mean_over: Any, spec: BatchSpec) -> Callable[[Any], Any]:
    """Build the function that counts the terms over which the loss of a batch is the mean.

    Args:
        mean_over: "examples", "tokens", or a function of the batch that counts.
        spec: Which part of the batch is the input and which is the target.

    Raises:
        ValueError: `mean_over` is another value.
    """
    if mean_over == "examples":
        return lambda batch: count_examples(spec.inputs(batch))
    if mean_over == "tokens":
        return lambda batch: count_loss_tokens(spec.targets(batch))
    if callable(mean_over):
        return lambda batch: _as_count(mean_over(batch))
    raise ValueError(
        f"loss_mean_over={mean_over!r} must be 'examples', 'tokens' (targets other than -100), or "
        "a function of the batch that counts the terms of its loss."
    )


def _as_count(count: Any) -> Tensor:
    if isinstance(count, Tensor):
        return count
    if isinstance(count, bool) or not isinstance(count, (int, float)):
        raise TypeError(
            f"loss_mean_over returned {count!r} and must return a number, or a tensor of one "
            "element."
        )
    return torch.tensor(count)


def check_loss(loss: Any) -> Tensor:
    """Return the loss; raise an error if it is not a differentiable scalar."""
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"loss_fn returned {type(loss).__name__} and must return a tensor without dimensions."
        )
    if loss.ndim:
        raise ValueError(
            f"loss_fn returned a tensor of shape {tuple(loss.shape)} and must return one without "
            "dimensions, such as loss.mean()."
        )
    if not loss.requires_grad:
        raise ValueError(
            "loss_fn returned a loss without a gradient: it doesn't depend on the model's "
            "parameters. Check that outputs are not detached and that parameters require grad."
        )
    return loss
