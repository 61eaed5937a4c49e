"""The Jensen-Shannon consistency loss of AugMix.

Hendrycks, Mu, Cubuk, Zoph, Gilmer and Lakshminarayanan, "AugMix: A Simple Data Processing Method to
Improve Robustness and Uncertainty", ICLR 2020, https://arxiv.org/abs/1912.02781, equation 1.
"""

from math import log

import torch
from jaxtyping import Float
from torch import Tensor

from composable._support.checks import check_blendable


def jensen_shannon_loss(
    logits: Float[Tensor, "batch classes *rest"], *others: Float[Tensor, "batch classes *rest"]
) -> Float[Tensor, ""]:
    r"""Compute the Jensen-Shannon divergence of several predictions.

    $$\mathrm{JS} = \frac{1}{n} \sum_{i=1}^n \mathrm{KL}(p_i \,\|\, \bar p), \qquad
    \bar p = \frac{1}{n} \sum_{i=1}^n p_i, \qquad p_i = \mathrm{softmax}(z_i)$$

    The paper adds 12 times this loss, for an image and two augmentations of it, to the loss of the
    image.

    Args:
        logits: Logits of the images, `[batch, classes, ...]`; -inf for masked classes.
        others: Logits of one or more augmentations of the images, of the same shape.

    Returns:
        The mean over the batch, from 0 (all predictions are equal) to $\log n$ (each prediction is
        certain of a different class).

    Raises:
        TypeError: An argument is not a tensor of floats.
        ValueError: `others` is empty, or the shapes differ.

    Example:
        >>> sure = torch.tensor([[100.0, 0.0]])
        >>> jensen_shannon_loss(sure, sure, sure).item()
        0.0
        >>> jensen_shannon_loss(sure, -sure)  # log(2)
        tensor(0.6931)
    """
    for name, tensor in [("logits", logits), *((f"others[{i}]", o) for i, o in enumerate(others))]:
        check_blendable(name, tensor)
        if tensor.ndim < 2 or tensor.shape != logits.shape:
            raise ValueError(
                "logits and others must have the same shape [batch, classes, ...], but logits has "
                f"{tuple(logits.shape)} and {name} has {tuple(tensor.shape)}."
            )
    if not others:
        raise ValueError("others must have the logits of at least one augmentation.")
    # Finite for masked classes, too: 0 times -inf is NaN.
    logs = torch.stack((logits, *others)).log_softmax(2).clamp(min=torch.finfo(logits.dtype).min)
    log_mean = logs.logsumexp(0) - log(len(logs))
    return (logs.exp() * (logs - log_mean)).sum(2).mean()
