"""How the loss of a batch is computed, split and weighted."""

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
    """A loss of outputs and targets, as a loss of outputs and a batch."""

    function: Callable[[Any, Any], Tensor]
    spec: BatchSpec

    def __call__(self, outputs: Any, batch: Any) -> Tensor:
        """The loss."""
        return self.function(outputs, self.spec.targets(batch))

    def per_example(self, outputs: Any, batch: Any) -> Tensor:
        """The loss of each example."""
        targets = self.spec.targets(batch)
        unreduced = _unreduced(self.function)
        if unreduced is not None:
            losses = unreduced(outputs, targets)
            return losses.flatten(1).mean(1) if losses.ndim > 1 else losses
        return _one_by_one(self.function, outputs, targets)


@attrs.frozen
class ModelLoss:
    """The loss of a model that has `loss(outputs, batch)`."""

    model: nn.Module

    def __call__(self, outputs: Any, batch: Any) -> Tensor:
        """The loss."""
        return self.model.loss(outputs, batch)  # type: ignore[operator, no-any-return]

    def per_example(self, outputs: Any, batch: Any) -> Tensor:
        """The loss of each example."""
        return _one_by_one(self.model.loss, outputs, batch)  # type: ignore[arg-type]


def _unreduced(function: Callable[..., Tensor]) -> Callable[..., Tensor] | None:
    """The same loss without its mean, where it offers that as `reduction`."""
    if isinstance(function, nn.Module):
        if not hasattr(function, "reduction"):
            return None
        import copy

        bare = copy.copy(function)
        bare.reduction = "none"  # type: ignore[assignment]
        return bare
    try:
        offers = "reduction" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    return partial(function, reduction="none") if offers else None


def _one_by_one(function: Callable[..., Tensor], outputs: Any, rest: Any) -> Tensor:
    """A mean loss of each example alone: one vectorised call on batches of one."""

    def of_one(output: Any, other: Any) -> Tensor:
        lone = partial(map_tensors, lambda tensor: tensor.unsqueeze(0))
        return function(lone(output), lone(other))

    return torch.func.vmap(of_one)(outputs, rest)


def count_loss_tokens(targets: Any, ignore_index: int = -100) -> Tensor:
    """How many targets bear a loss, as a tensor on their device."""
    if not isinstance(targets, Tensor):
        raise TypeError(
            "loss_mean_over='tokens' needs targets that are one tensor; got "
            f"{type(targets).__name__}: give a function of the batch that counts instead."
        )
    return (targets != ignore_index).sum()


def weigher(mean_over: Any, spec: BatchSpec) -> Callable[[Any], Any]:
    """The function that counts what the loss of a batch is the mean of."""
    if mean_over == "examples":
        return lambda batch: count_examples(spec.inputs(batch))
    if mean_over == "tokens":
        return lambda batch: count_loss_tokens(spec.targets(batch))
    if callable(mean_over):
        return lambda batch: _as_count(mean_over(batch))
    raise ValueError(
        f"loss_mean_over={mean_over!r} must be 'examples', 'tokens' (targets other than -100), or "
        "a function that counts in a batch what its loss is the mean of."
    )


def _as_count(count: Any) -> Tensor:
    if isinstance(count, Tensor):
        return count
    if isinstance(count, bool) or not isinstance(count, (int, float)):
        raise TypeError(
            f"loss_mean_over counted {count!r} in a batch, and must count a number or give a "
            "tensor of one element."
        )
    return torch.tensor(count)


def check_loss(loss: Any) -> Tensor:
    """The loss, where it can be differentiated as that of a batch."""
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"loss_fn returned {type(loss).__name__} and must return a tensor without dimensions."
        )
    if loss.ndim:
        raise ValueError(
            f"loss_fn returned a tensor of shape {tuple(loss.shape)} and must return one without "
            "dimensions: take its mean, such as loss.mean()."
        )
    if not loss.requires_grad:
        raise ValueError(
            "loss_fn returned a loss without a gradient: it doesn't depend on the model's "
            "parameters. Check that outputs are not detached and that parameters require grad."
        )
    return loss
