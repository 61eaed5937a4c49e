"""Ensembles: averages of probabilities, and their weights.

Huang, Li, Pleiss, Liu, Hopcroft and Weinberger, "Snapshot Ensembles: Train 1, Get M for Free",
ICLR 2017, https://arxiv.org/abs/1704.00109, averages the predictions of snapshots. The weights of a
mixture are fitted by expectation-maximization: Dempster, Laird and Rubin, "Maximum Likelihood from
Incomplete Data via the EM Algorithm", 1977, section 4.3.
"""

from collections.abc import Sequence
from math import inf

import torch
from jaxtyping import Float
from torch import Tensor

from composable._support.checks import (
    check_blendable,
    check_tensor,
    checked,
    kind_of,
    minimum,
    optional,
)
from composable._support.devices import compute_dtype
from composable._support.targets import check_class_dim, check_several_classes

__all__ = ["average_probabilities", "mixture_weights"]


def average_probabilities(
    logits: Sequence[Float[Tensor, "batch ..."]],
    *,
    weights: Float[Tensor, " models"] | None = None,
    class_dim: int = 1,
) -> Float[Tensor, "batch ..."]:
    r"""Average the probabilities of several models, not their logits.

    $$\log \sum_k w_k \, \mathrm{softmax}(z_k)$$

    The result is the logarithm of the average, and so logits of it: a cross entropy and an accuracy
    take it like the logits of one model.

    Args:
        logits: Logits of each model, `[batch, classes, ...]`, of one shape; -inf for masked
            classes.
        weights: Weights of the models, 0 or more, with a sum of 1, such as `mixture_weights`
            returns. By default all equal. Logits with a weight of 0 are not read.
        class_dim: Dimension of the classes: 1, or -1 for `[batch, ..., classes]`.

    Returns:
        Logarithms of probabilities, in the dtype of the first logits. They are computed in at least
        float32.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: There are no models, shapes differ, or there is only one class.

    Example:
        >>> sure, unsure = torch.tensor([[100.0, 0.0]]), torch.tensor([[0.0, 0.0]])
        >>> average_probabilities([sure, unsure]).exp()
        tensor([[0.7500, 0.2500]])
    """
    check_class_dim("class_dim", class_dim)
    if not isinstance(logits, Sequence):
        raise TypeError(f"logits must be a list of tensors, one a model, not {kind_of(logits)}.")
    if not logits:
        raise ValueError("logits=[] must have the logits of at least one model.")
    for i, one in enumerate(logits):
        check_blendable(f"logits[{i}]", one)
        if one.ndim < 2 or one.shape != logits[0].shape:
            raise ValueError(
                f"logits[{i}] has shape {tuple(one.shape)} and logits[0] {tuple(logits[0].shape)}; "
                "the models of an ensemble must have outputs of one shape, [batch, classes, ...]."
            )
    check_several_classes("logits[0]", logits[0], class_dim)
    dtype = compute_dtype(logits[0].dtype)
    if weights is None:
        weights = torch.full((len(logits),), 1 / len(logits), dtype=dtype, device=logits[0].device)
    check_tensor("weights", weights)
    if weights.shape != (len(logits),):
        raise ValueError(
            f"weights must have one value for each of the {len(logits)} models, not the shape "
            f"{tuple(weights.shape)}."
        )
    several = torch.stack([logit.to(dtype) for logit in logits])
    return log_average(several, weights.to(several), class_dim).to(logits[0].dtype)


def log_average(logits: Tensor, weights: Tensor, class_dim: int) -> Tensor:
    """Return the logarithm of the average of probabilities, for logits `[models, batch, ...]`."""
    shares = weights.reshape(-1, *[1] * (logits.ndim - 1))
    # 0 times NaN is NaN, and so is the gradient of the logarithm of a sum of zeros.
    logits = logits.masked_fill(shares == 0, 0)
    logs = logits.log_softmax(class_dim + (class_dim > 0)) + shares.log()
    none = logs.isneginf().all(0)
    return logs.masked_fill(none, 0).logsumexp(0).masked_fill(none, -inf)


@checked(log_likelihoods=check_blendable, top=optional(minimum(1)), iterations=minimum(1))
def mixture_weights(
    log_likelihoods: Float[Tensor, "models examples"],
    *,
    top: int | None = None,
    iterations: int = 1000,
) -> Float[Tensor, " models"]:
    r"""Fit the weights of a mixture of models to examples that none of them was trained on.

    They minimize $-\frac{1}{n} \sum_i \log \sum_k w_k \, p_{ki}$ by expectation-maximization. After
    $t$ iterations the loss is at most $\log(\text{models}) / t$ above its minimum.

    Args:
        log_likelihoods: Log-likelihood $\log p_{ki}$ of each example under each model. An example
            is an image, a token or a document: what the mixture is evaluated on.
        top: Number of models to keep, those with the largest weights, whose weights are then fitted
            again. By default all.
        iterations: Number of iterations of each fit, at least 1.

    Returns:
        The weights, 0 or more, with a sum of 1, in the dtype of `log_likelihoods`. They are fitted
        in float64.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The shape is wrong, a number is out of range, or the models that are kept give
            an example no likelihood, or NaN.

    Example:
        >>> likelihoods = torch.tensor([[0.9, 0.9, 0.1], [0.1, 0.1, 0.9], [0.1, 0.1, 0.1]])
        >>> mixture_weights(likelihoods.log())
        tensor([0.7083, 0.2917, 0.0000])
    """
    if log_likelihoods.ndim != 2 or not log_likelihoods.numel():
        raise ValueError(
            "log_likelihoods must be [models, examples], with at least one of each, not of shape "
            f"{tuple(log_likelihoods.shape)}."
        )
    models = len(log_likelihoods)
    if top is not None and top > models:
        raise ValueError(f"top={top} must be at most the number of models, {models}.")
    logs = log_likelihoods.detach().double()
    _refuse_impossible("log_likelihoods", logs, "omit these examples, or models that diverged")
    weights = _maximize(logs, iterations)
    if top is not None and top < models:
        kept = weights.topk(top).indices
        _refuse_impossible(f"log_likelihoods of the top={top} models", logs[kept], "raise top")
        weights = torch.zeros_like(weights).index_copy(0, kept, _maximize(logs[kept], iterations))
    return weights.to(log_likelihoods.dtype)


def _refuse_impossible(name: str, logs: Tensor, cure: str) -> None:
    """Raise a ValueError for examples of which a mixture has no likelihood."""
    finite = logs.amax(0).isfinite()
    if not finite.all():  # once for all examples: a fit isn't part of a step
        wrong = (~finite).nonzero().flatten().tolist()
        listed = f"{wrong[:5]}{' and others' * (len(wrong) > 5)}"
        raise ValueError(f"{name} are NaN, or -inf under all, for the examples {listed}: {cure}.")


def _maximize(logs: Tensor, iterations: int) -> Tensor:
    """Maximize the likelihood of a mixture from equal weights."""
    likelihoods = (logs - logs.amax(0)).exp()  # relative to the best model of each example
    weights = torch.full_like(logs[:, 0], 1 / len(logs))
    for _ in range(iterations):
        weights = weights * (likelihoods @ (weights @ likelihoods).reciprocal()) / logs.shape[1]
    return weights
