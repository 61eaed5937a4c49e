"""The loss of a batch: by a function, by a method of the model, or by its forward pass."""

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import attrs
import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from composable._support.notes import add_note
from composable._support.tree import map_tensors, tensors_of
from composable.batches.layouts import is_list
from composable.batches.model_call import (
    ModelCall,
    call_for_logits,
    call_with_batch,
    call_with_input,
    is_transformers_model,
    keyword_call_of,
    needs_logits,
)
from composable.batches.spec import BatchSpec
from composable.batches.target_hints import explain_targets


@attrs.frozen
class TargetLoss:
    """A loss function of outputs and targets as a function of outputs and a batch."""

    function: Callable[[Any, Any], Tensor]
    spec: BatchSpec
    count: Callable[[Any], Any] | None = None
    """Counts in a batch what `loss_mean_over` declares, if anything does."""

    def __call__(self, outputs: Any, batch: Any) -> Tensor:
        """Compute the loss."""
        try:
            return self.function(outputs, self.spec.targets(batch))
        except TypeError as error:
            if isinstance(outputs, (tuple, list, Mapping)):
                add_note(
                    error,
                    f"the model returned a {type(outputs).__name__}; pass a loss_fn that reads its "
                    "parts, or composable.models.AuxiliaryLoss(loss_fn) if the first is the main "
                    "output and the others are auxiliary ones.",
                )
            raise
        except (RuntimeError, ValueError, IndexError) as error:
            explain_targets(error, outputs, self.spec.targets(batch))
            raise

    def per_example(self, outputs: Any, batch: Any) -> Tensor:
        """Compute the loss of each example."""
        targets = self.spec.targets(batch)
        unreduced = _unreduced(self.function)
        if unreduced is not None:
            losses = unreduced(outputs, targets)
            return losses.flatten(1).mean(1) if losses.ndim > 1 else losses
        if is_list(targets) and self.spec.layout_of(batch) != "tensors":
            pairs = BatchSpec(batch_layout="lists").split((outputs, targets), [1] * len(targets))
            return torch.stack([self.function(*pair) for pair in pairs])
        return _one_by_one(self.function, outputs, targets)


@attrs.frozen
class ModelLoss:
    """The loss of a model that defines `loss(outputs, batch)`."""

    model: nn.Module
    count: Callable[[Any], Any] | None = None
    """Counts in a batch what `loss_mean_over` declares, if anything does."""

    def __call__(self, outputs: Any, batch: Any) -> Tensor:
        """Compute the loss."""
        return self.model.loss(outputs, batch)  # type: ignore[operator, no-any-return]

    def per_example(self, outputs: Any, batch: Any) -> Tensor:
        """Compute the loss of each example."""
        return _one_by_one(self.model.loss, outputs, batch)  # type: ignore[arg-type]


@attrs.frozen
class OutputLoss:
    """The loss that a model of Transformers returns among its outputs."""

    model: str
    """The class of the model."""

    def __call__(self, outputs: Any, batch: Any) -> Tensor:
        """Return the loss.

        Raises:
            ValueError: There is none.
        """
        if isinstance(outputs, (tuple, list)):
            first = outputs[0] if outputs else None
            loss = first if isinstance(first, Tensor) and first.ndim == 0 else None
        else:
            loss = getattr(outputs, "loss", None)
        if loss is None:
            keys = list(batch) if isinstance(batch, Mapping) else []
            raise ValueError(
                f"{self.model} returned no loss for a batch with the keys {keys}; add the "
                "labels to the batch, by the names that the model's forward takes ('labels', or "
                "'start_positions' and 'end_positions'), pass loss_fn, or train a model with a "
                "head, such as AutoModelForSequenceClassification."
            )
        return loss

    def per_example(self, outputs: Any, batch: Any) -> Tensor:
        """Raise a TypeError: the model has averaged the losses of the examples."""
        raise TypeError(self.needs_logits("An algorithm that weights examples"))

    def needs_logits(self, name: str) -> str:
        """Return the message about an algorithm that needs a loss of logits and targets."""
        return needs_logits(name, self.model)


Loss: TypeAlias = TargetLoss | ModelLoss | OutputLoss


def call_of(loss: Any, model: nn.Module) -> ModelCall:
    """Return how a model with this loss is called."""
    if isinstance(loss, OutputLoss):
        return keyword_call_of(model)
    if isinstance(loss, ModelLoss):
        return call_with_batch
    return call_for_logits if is_transformers_model(model) else call_with_input


def loss_module(loss: Any, model: nn.Module) -> nn.Module | None:
    """Return the module that computes a loss, unless it is a part of the model.

    Args:
        loss: The loss. Its function may be a module, a method of one, or a partial of either.
        model: The model.
    """
    function = function_of(loss)
    owner = getattr(function, "__self__", function)
    known = any(owner is module for module in model.modules())
    return owner if isinstance(owner, nn.Module) and not known else None


def function_of(loss: Any) -> Any:
    """Return the function of outputs and targets that is inside of every `functools.partial`."""
    function: Any = getattr(loss, "function", loss)
    while isinstance(function, partial):
        function = function.func
    return function


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
                "averaged over the batch, such as outputs.loss, so the losses of the examples are "
                "unknown; "
                "compute the loss from the other outputs, such as "
                "cross_entropy(outputs.logits, labels)."
            )
        return loss

    return torch.func.vmap(of_one)(*examples)


def divided_by(mean: Tensor, count: int, total: Tensor | None) -> Tensor:
    """Return the sum of `count` terms with a mean, divided by a total, and 0 where that is 0.

    Without a total it is the sum. A `LossWatch` sees the call, and returns the sum for 0.
    """
    if has_torch_function((mean,)):
        return handle_torch_function(divided_by, (mean,), mean, count, total)
    if total is None:
        return mean * count
    return mean * torch.where(total > 0, count / total, 0.0).to(mean.dtype)


def check_scalar(loss: Any, name: str = "loss_fn") -> Tensor:
    """Return the loss; raise an error if it is not a tensor without dimensions."""
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"{name} returned {type(loss).__name__} and must return a tensor without dimensions."
        )
    if loss.ndim:
        raise ValueError(
            f"{name} returned a tensor of shape {tuple(loss.shape)} and must return one without "
            "dimensions, such as loss.mean()."
        )
    if loss.is_meta:
        raise ValueError(
            f"{name} returned a tensor on 'meta', which has no value; compute it on the device of "
            "the outputs, and create the model and all tensors of the loss there, or move them by "
            "to_empty and load their values."
        )
    return loss


def check_loss(loss: Any) -> Tensor:
    """Return the loss; raise an error if it is not a differentiable scalar."""
    if isinstance(loss, Tensor) and loss.requires_grad and not (loss.ndim or loss.is_meta):
        return loss  # the common case, once a step
    scalar = check_scalar(loss)
    if not scalar.requires_grad:
        raise ValueError(
            "loss_fn returned a loss without a gradient: it doesn't depend on the model's "
            "parameters. Check that outputs are not detached and that parameters require grad."
        )
    return scalar
