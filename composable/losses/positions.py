"""The positions of logits over which a loss of classes is a mean, and their weights."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from composable._support.devices import compute_dtype
from composable._support.targets import IGNORE_INDEX
from composable.batches.model_call import is_transformers_model, logits_of, shifts_labels
from composable.core.state import State
from composable.functional import MixedTargets
from composable.losses.classes import CrossEntropy, InterpolatedLoss, refuse_regression
from composable.losses.loss import ModelLoss, OutputLoss


class Positions(NamedTuple):
    """Logits, the dimension of their classes, and the weight of each position."""

    logits: Tensor
    class_dim: int
    weights: Tensor | None
    """Those by which the loss weights positions; None for the same weight everywhere."""
    is_sum: bool = False
    """Whether the loss is a sum over the positions, and not a mean."""


def positions_of(state: State, name: str, class_dim: int | None = None) -> Positions:
    """Return the logits of a state after its forward pass, with the weights of the positions.

    The weights are as in a cross entropy: the weight of the label's class, and 0 without a label.
    For a loss that changes the shapes of logits and labels, such as by a shift, they are unknown.

    Args:
        state: The state before the loss.
        name: The algorithm, for messages.
        class_dim: The dimension of the classes, 1 or -1; None to find it.

    Raises:
        TypeError: The outputs have no logits.
        ValueError: The dimension of the classes is unknown, or the loss is not one of classes.
    """
    logits = class_logits(state.outputs, name)
    labels, loss_fn = _labels(state, logits), state.loss_fn
    if isinstance(loss_fn, InterpolatedLoss):
        loss_fn = loss_fn.loss_fn
    kept = labels.targets if isinstance(labels, MixedTargets) else labels
    _refuse_numbers(state, kept, logits, name)
    if class_dim is None:
        class_dim = _dim_of(state.model, logits, kept, name)
    dtype = compute_dtype(logits.dtype)
    if not isinstance(kept, Tensor):
        return Positions(logits, class_dim, None)
    if kept.is_floating_point():
        labeled = kept.sum(class_dim) != 0  # probabilities, which are all 0 without a label
        return Positions(logits, class_dim, labeled.to(dtype))
    if kept.shape != _shape(logits, class_dim):
        return Positions(logits, class_dim, None)
    options = CrossEntropy.of(loss_fn) or CrossEntropy()
    weights = options.weights(labels, dtype)
    return Positions(logits, class_dim, weights, options.reduction == "sum")


def class_logits(outputs: Any, name: str) -> Tensor:
    """Return the logits among the outputs of a model.

    Raises:
        TypeError: There are none.
    """
    logits = logits_of(outputs)
    found = type(outputs).__name__
    if isinstance(logits, Tensor):
        if logits.ndim > 1 and logits.is_floating_point():
            return logits
        found = f"a tensor of shape {tuple(logits.shape)} and {logits.dtype}"
    raise TypeError(
        f"{name} needs logits of classes, [batch, classes, ...], and the model returned {found}; "
        "return such a tensor, or an output of Transformers with logits."
    )


def default_class_dim(model: nn.Module, logits: Tensor) -> int:
    """Return 1, but -1 for the logits of tokens of a model of Transformers."""
    return -1 if is_transformers_model(model) and logits.ndim == 3 else 1


def labels_of_logits(model: nn.Module, labels: Any, logits: Tensor) -> Any:
    """Return the label of each position of the logits of a model of Transformers.

    Most causal language models predict the label of the next position.
    """
    if not isinstance(labels, Tensor) or labels.shape != logits.shape[:-1]:
        return labels
    if labels.ndim < 2 or not shifts_labels(model):
        return labels
    last = torch.full_like(labels[:, :1], IGNORE_INDEX)
    return torch.cat([labels[:, 1:], last], 1)


def _labels(state: State, logits: Tensor) -> Any:
    """Return the targets of a loss of outputs and targets, or the labels of a model's own loss."""
    if isinstance(state.loss_fn, ModelLoss):
        return None
    targets = state.targets
    if isinstance(state.loss_fn, OutputLoss):
        return labels_of_logits(state.model, targets, logits)
    return targets


def _refuse_numbers(state: State, labels: Any, logits: Tensor, name: str) -> None:
    """Raise a ValueError for a loss of numbers, or of several labels for each example."""
    own = isinstance(state.loss_fn, (ModelLoss, OutputLoss))
    if isinstance(labels, Tensor) and not own:
        refuse_regression(state, labels, name)
    elif logits.shape[1:] == (1,) or (isinstance(labels, Tensor) and labels.is_floating_point()):
        raise ValueError(
            f"{name} needs a loss of classes, of which one is right, and the logits of "
            f"{type(state.model).__name__} have the shape {tuple(logits.shape)}, with labels that "
            f"are numbers; train without {name}."
        )


def _dim_of(model: nn.Module, logits: Tensor, labels: Any, name: str) -> int:
    """Return the class dimension."""
    if isinstance(labels, Tensor):
        for dim in (1, -1):
            if labels.shape in (_shape(logits, dim), logits.shape):
                return dim
    if logits.ndim == 2 or is_transformers_model(model):
        return default_class_dim(model, logits)
    raise ValueError(
        f"{name} can't tell the dimension of the classes in logits of shape "
        f"{tuple(logits.shape)}; pass class_dim=1, or class_dim=-1 for [batch, ..., classes]."
    )


def _shape(logits: Tensor, class_dim: int) -> tuple[int, ...]:
    """Return the shape of the positions."""
    return logits.movedim(class_dim, -1).shape[:-1]
