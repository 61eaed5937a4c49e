"""The loss of a batch: its computation, per example, and its weight in an accumulated batch."""

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from composable.core._warnings import warn_user
from composable.core.batch import BatchSpec, count_examples, map_tensors, tensors_of
from composable.functional._checks import check_tensor
from composable.functional.mixed import MixedTargets, broadcast_weight

__all__ = [
    "LossMeanWarning",
    "ModelLoss",
    "TargetLoss",
    "check_loss",
    "count_loss_tokens",
    "loss_module",
]

_IGNORED = -100
_SHIFTING = ("ForCausalLM", "LMHeadModel")


class LossMeanWarning(UserWarning):
    """A loss that is probably a mean over something else than `loss_mean_over` counts."""


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


def loss_module(loss: TargetLoss | ModelLoss | None, model: nn.Module) -> nn.Module | None:
    """Return the module that computes a loss, unless it is a part of the model.

    Args:
        loss: The loss. Its function may be a module, a method of one, or a partial of either.
        model: The model.
    """
    function: Any = getattr(loss, "function", None)
    while isinstance(function, partial):
        function = function.func
    owner = getattr(function, "__self__", function)
    known = any(owner is module for module in model.modules())
    return owner if isinstance(owner, nn.Module) and not known else None


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
    """Compute the loss of each example by a vectorized call on batches of one.

    Tensors without dimensions, such as a loss among the outputs, are passed as they are.

    Raises:
        ValueError: The result does not depend on the example.
    """
    tree = outputs, rest
    examples = [tensor for tensor in tensors_of(tree) if tensor.ndim]

    def of_one(*rows: Tensor) -> Tensor:
        lone = (row.unsqueeze(0) for row in rows)
        loss = function(*map_tensors(lambda tensor: next(lone) if tensor.ndim else tensor, tree))
        if not torch._C._functorch.is_batchedtensor(loss):
            raise ValueError(
                f"{getattr(function, '__qualname__', function)} returned a loss that the model has "
                "averaged over the batch, such as outputs.loss, so those of the examples are "
                "unknown; "
                "compute the loss from the other outputs, such as "
                "cross_entropy(outputs.logits, labels)."
            )
        return loss

    return torch.func.vmap(of_one)(*examples)


def count_loss_tokens(targets: Any, ignore_index: int = _IGNORED) -> Tensor:
    """Count the targets other than `ignore_index`, as a tensor on their device."""
    if isinstance(targets, MixedTargets):
        kept, partner = (
            (one != ignore_index).double() for one in (targets.targets, targets.partner_targets)
        )
        return torch.lerp(partner, kept, broadcast_weight(targets.weight, kept)).sum()
    if not isinstance(targets, Tensor):
        raise TypeError(
            "loss_mean_over='tokens' needs targets that are a tensor; got "
            f"{type(targets).__name__}; pass a function of the batch that counts them instead."
        )
    if type(ignore_index) is not int or not -(2**63) <= ignore_index < 2**63:
        raise TypeError(f"ignore_index={ignore_index!r} must be an integer of 64 bits.")
    check_tensor("targets", targets)
    return (targets != ignore_index).sum()


def weigher(mean_over: Any, spec: BatchSpec, model: nn.Module) -> Callable[[Any], Any]:
    """Build the function that counts the terms over which the loss of a batch is the mean.

    Args:
        mean_over: "examples", "tokens", "next_tokens", or a function of the batch that counts.
        spec: Which part of the batch is the input and which is the target.
        model: The model that is trained, which may shift its labels.

    Raises:
        ValueError: `mean_over` is another value.

    Warns:
        LossMeanWarning: Examples are counted, and targets hold -100; or tokens are counted, and the
            model shifts its labels.
    """
    word = mean_over if isinstance(mean_over, str) else ""
    if word == "examples":
        return ExampleCounter(spec)
    if word == "tokens":
        _warn_if_shifting(model)
        return lambda batch: count_loss_tokens(spec.targets(batch))
    if word == "next_tokens":
        return lambda batch: count_loss_tokens(_after_first(spec.targets(batch)))
    if callable(mean_over):
        return lambda batch: _as_count(mean_over(batch))
    raise ValueError(
        f"loss_mean_over={mean_over!r} must be 'examples', 'tokens' (targets other than -100), "
        "'next_tokens' (likewise, without the first token of each example), or a function of the "
        "batch that counts the terms of its loss."
    )


@attrs.define(eq=False)
class ExampleCounter:
    """Counts the examples of a batch, and warns if targets of the first batch are ignored.

    It looks at the first batch only, since it has to wait for a device that is not the CPU.
    """

    spec: BatchSpec
    _looking: bool = True

    def __call__(self, batch: Any) -> int:
        """Count the examples."""
        if self._looking:
            self._looking = False
            self._look(batch)
        return count_examples(self.spec.inputs(batch))

    def _look(self, batch: Any) -> None:
        try:
            targets = self.spec.targets(batch)
        except ValueError:
            targets = batch
        classes = [t for t in tensors_of(targets) if t.dtype in (torch.int64, torch.int32)]
        if any(bool((tensor == _IGNORED).any()) for tensor in classes):
            warn_user(
                "Targets hold -100, which losses ignore, and loss_mean_over='examples' weights the "
                "loss of a microbatch or of an evaluated batch by its examples; pass "
                "loss_mean_over='tokens' if the loss is a mean over the other targets.",
                LossMeanWarning,
            )


def _after_first(targets: Any) -> Any:
    return targets[:, 1:] if isinstance(targets, Tensor) else targets


def _warn_if_shifting(model: nn.Module) -> None:
    """Warn about a causal language model of Transformers: its own loss shifts the labels."""
    for module in model.modules():
        name = type(module).__name__
        if name == "LogitsModel":  # its loss is a function of logits and labels
            return
        bases = {
            f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(module).__mro__
        }
        if name.endswith(_SHIFTING) and "transformers.PreTrainedModel" in bases:
            warn_user(
                f"The loss of {name} shifts the labels and excludes the first token of an example, "
                "but loss_mean_over='tokens' counts that token; pass 'next_tokens' if "
                "the loss is that of the model, or a function of the batch if you compute it.",
                LossMeanWarning,
            )
            return


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
