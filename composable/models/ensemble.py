"""Ensembles of models, for evaluation."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from composable._support.checks import check_module, kind_of
from composable._support.devices import compute_dtype
from composable._support.targets import check_class_dim
from composable.core.evaluation_mode import evaluation_mode
from composable.functional import average_probabilities
from composable.losses.positions import class_logits, default_class_dim


class Ensemble(nn.Module):
    """Predict with the average probabilities of several models, in evaluation mode.

    It returns the logarithms of the averages, which losses and metrics take like the logits of one
    model: see `composable.functional.average_probabilities`. A call costs as much as one of each
    model, so report its results separately from single-model results.

    Args:
        members: The models, such as the snapshots of a run. They are called with the arguments of
            the ensemble, and return logits, or outputs of Transformers. A call restores their
            modes.
        weights: Weights of the models, 0 or more, such as `mixture_weights` returns. They are
            divided by their sum. By default all equal.
        class_dim: Dimension of the classes in the logits: 1, or -1 for the last. By default the
            last for tokens of models of Transformers, and 1 otherwise.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: There are no models, or the weights are not one number of 0 or more for each.

    Example:
        >>> from composable.models import Ensemble
        >>> ensemble = Ensemble([nn.Linear(4, 3), nn.Linear(4, 3)], weights=[0.75, 0.25])
        >>> ensemble(torch.randn(2, 4)).exp().sum(1).allclose(torch.ones(2))
        True
    """

    weights: Tensor

    def __init__(
        self,
        members: Sequence[nn.Module] | nn.ModuleList,
        *,
        weights: Iterable[float] | Tensor | None = None,
        class_dim: int | None = None,
    ) -> None:
        super().__init__()
        models = _checked_models(members)
        self.members = nn.ModuleList(models)
        self.register_buffer("weights", _shares(weights, len(models)))
        if class_dim is not None:
            check_class_dim("class_dim", class_dim)
        self.class_dim = class_dim

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Call each model in evaluation mode, and average the probabilities.

        Raises:
            TypeError: A model returns no logits.
            ValueError: The models return logits of different shapes, or of a single class.
        """
        gradients = torch.is_grad_enabled()
        with evaluation_mode(self.members), torch.set_grad_enabled(gradients):
            found = [class_logits(member(*args, **kwargs), "Ensemble") for member in self.members]
        logits = [tensor.to(compute_dtype(tensor.dtype)) for tensor in found]
        dim = self.class_dim
        dim = default_class_dim(self.members[0], logits[0]) if dim is None else dim
        return average_probabilities(logits, weights=self.weights, class_dim=dim)


def _checked_models(models: Any) -> list[nn.Module]:
    if not isinstance(models, (Sequence, nn.ModuleList)) or isinstance(models, (str, bytes)):
        raise TypeError(f"members must be a list of modules, not {kind_of(models)}.")
    listed = list(models)
    if not listed:
        raise ValueError("members=[] must have at least one model.")
    for i, model in enumerate(listed):
        check_module(f"members[{i}]", model)
    return listed


def _shares(weights: Any, count: int) -> Tensor:
    """Return weights with a sum of 1."""
    if weights is None:
        return torch.full((count,), 1 / count)
    try:
        given = torch.as_tensor(weights if isinstance(weights, Tensor) else list(weights)).float()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"weights={weights!r} must be a list of numbers.") from error
    if given.shape != (count,) or not (given >= 0).all() or not 0 < given.sum() < float("inf"):
        raise ValueError(
            f"weights={weights!r} must be one number for each of the {count} models, 0 or more, "
            "and not all 0."
        )
    return given.detach() / given.sum()
