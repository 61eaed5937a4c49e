"""Test-time augmentation: outputs that are averaged over several views of each image.

Krizhevsky, Sutskever and Hinton, "ImageNet Classification with Deep Convolutional Neural Networks",
NeurIPS 2012; the views: Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", 2024,
https://arxiv.org/abs/2404.00498
"""

import inspect
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from composable._support.checks import (
    check_count,
    check_flag,
    check_is_callable,
    check_one_of,
    check_tensor,
)
from composable._support.devices import compute_dtype, from_numbers
from composable._support.spatial import check_spatial, reflected, take

from .ensembles import log_average

AVERAGES = ("logits", "probabilities")


def tta(
    model: Any,
    inputs: Shaped[Tensor, "batch channels *size"],
    *,
    flip: bool = True,
    shift: int = 1,
    average: str = "logits",
) -> Float[Tensor, "batch classes"]:
    """Call a classifier on several views of each image, and average its outputs.

    Args:
        model: A function or module that returns logits, `[batch, classes]`, each from its image
            alone: in evaluation mode, and called once, with all views as one batch.
        inputs: Images `[batch, channels, height, width]`, signals or volumes, of any dtype.
        flip: Add each view from right to left.
        shift: Number of pixels, 0 or more and less than each side, by which an image is shifted
            along its diagonal in both directions: two more views. 0 for none.
        average: "logits" or "probabilities": what is averaged; see `average_tta`.

    Returns:
        The averaged outputs.

    Raises:
        TypeError: An argument, or the output, is of the wrong type.
        ValueError: An argument is out of range, or the output is not `[batch, classes]`.

    Example:
        >>> images = torch.rand(2, 3, 8, 8)
        >>> means = tta(lambda x: x.mean((2, 3)), images, shift=0)  # it sees no flip
        >>> torch.allclose(means, images.mean((2, 3)))
        True
    """
    check_is_callable("model", model)
    _check_takes_views(model)
    views = tta_views(inputs, flip=flip, shift=shift)
    return average_tta(model(views), flip=flip, shift=shift, average=average)


def _check_takes_views(model: Any) -> None:
    """Raise a TypeError if a function does not take one argument, or is a class."""
    try:
        inspect.signature(model).bind(None)
    except (TypeError, ValueError) as error:
        refused = isinstance(error, TypeError)  # others have no signature
    else:
        refused = False
    if refused or isinstance(model, type):
        raise TypeError(f"model={model!r} must be a function or module that takes a batch alone.")


def tta_views(
    inputs: Shaped[Tensor, "batch channels *size"], *, flip: bool = True, shift: int = 1
) -> Shaped[Tensor, "views channels *size"]:
    """Make the views of a batch.

    Args:
        inputs: Images `[batch, channels, height, width]`, signals or volumes, of any dtype.
        flip: Add each view from right to left.
        shift: The shift along the diagonal in both directions, in pixels; what enters at a border
            is a reflection. 0 for none.

    Returns:
        The images themselves, and behind them the other views of all images: with the dtype, device
        and memory layout of `inputs`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `shift` is negative or not less than a side, or the inputs have no spatial
            dimension.

    Example:
        >>> tta_views(torch.tensor([[[1, 2, 3]]]))[:, 0].tolist()
        [[1, 2, 3], [2, 1, 2], [2, 3, 2], [3, 2, 1], [2, 1, 2], [2, 3, 2]]
    """
    check_spatial("inputs", inputs)
    _check(flip, shift)
    size = inputs.shape[2:]
    if 0 < min(size) <= shift:
        raise ValueError(
            f"shift={shift} must be less than each side of the images, {tuple(size)}: a reflection "
            "has no more pixels."
        )
    views = [inputs]
    for by in (-shift, shift) if shift else ():
        lines = [torch.arange(length, device=inputs.device) + by for length in size]
        views.append(take(inputs, [reflected(*pair) for pair in zip(lines, size, strict=True)]))
    return torch.cat([*views, *(view.flip(-1) for view in views if flip)])


def average_tta(
    outputs: Float[Tensor, " *shape"],
    *,
    flip: bool = True,
    shift: int = 1,
    average: str = "logits",
) -> Float[Tensor, "batch classes"]:
    r"""Average the outputs for the views of `tta_views`.

    An image that is not shifted has the weight of its two shifted views together. The average is
    the mean of the logits, $\sum_v w_v z_v$, or the logarithm of the mean of the probabilities,
    $\log \sum_v w_v \operatorname{softmax}(z_v)$, which are logits too.

    Args:
        outputs: Logits `[views * batch, classes]`.
        flip: As in `tta_views`.
        shift: As in `tta_views`.
        average: "logits" or "probabilities".

    Returns:
        Logits `[batch, classes]`, with the dtype of `outputs`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `outputs` has another shape, or `average` doesn't exist or needs two classes.

    Example:
        >>> average_tta(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), shift=0)
        tensor([[2., 1.]])
    """
    check_tensor("outputs", outputs, advice="the logits of a classifier")
    _check(flip, shift)
    check_one_of("average", average, AVERAGES)
    weights = [share / (1 + flip) for _ in range(1 + flip) for share in _SHARES[bool(shift)]]
    if not outputs.is_floating_point():
        raise TypeError(f"outputs must have a floating-point dtype, not {outputs.dtype}.")
    if outputs.ndim != 2 or len(outputs) % len(weights):
        raise ValueError(
            f"outputs must be logits [{len(weights)} * batch, classes], for the {len(weights)} "
            f"views of each image, not {tuple(outputs.shape)}."
        )
    if average == "probabilities" and outputs.shape[1] < 2:
        raise ValueError(
            f"average='probabilities' needs two classes or more, and outputs is "
            f"{tuple(outputs.shape)}; pass 'logits'."
        )
    batch = len(outputs) // len(weights)
    exact = outputs.to(compute_dtype(outputs.dtype))
    views = exact.reshape(len(weights), batch, outputs.shape[1])
    if average == "probabilities":
        return log_average(views, from_numbers(weights, views), -1).to(outputs.dtype)
    terms = [view * w for view, w in zip(views, weights, strict=True)]
    return torch.stack(terms).sum(0).to(outputs.dtype)


_SHARES = {False: (1.0,), True: (0.5, 0.25, 0.25)}
"""The weights of the views that are not flipped, by whether some are shifted."""


def _check(flip: bool, shift: int) -> None:
    check_flag("flip", flip)
    check_count("shift", shift)
