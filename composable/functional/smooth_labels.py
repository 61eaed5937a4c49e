"""Label smoothing: mix one-hot targets with the uniform distribution.

Szegedy, Vanhoucke, Ioffe, Shlens and Wojna, "Rethinking the Inception Architecture for Computer
Vision", CVPR 2016, section 7, https://arxiv.org/abs/1512.00567
"""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from composable._support.checks import check_integer, check_tensor, checked, within
from composable._support.devices import compute_dtype
from composable._support.targets import (
    IGNORE_INDEX,
    check_class_dim,
    class_probabilities,
    count_classes,
    dim_of_classes,
)

_ROUNDING = 0.02
"""Largest difference from 1 of the sum of probabilities in a 16-bit dtype."""


@checked(
    targets=check_tensor,
    smoothing=within(0, 1),
    ignore_index=check_integer,
    class_dim=check_class_dim,
)
def smooth_labels(
    targets: Shaped[Tensor, " *shape"],
    *,
    smoothing: float = 0.1,
    num_classes: int | None = None,
    class_dim: int = 1,
    ignore_index: int = IGNORE_INDEX,
) -> Float[Tensor, " *smooth"]:
    r"""Mix targets with the uniform distribution over the classes.

    $$y' = (1 - s) y + s / C$$

    Args:
        targets: Class indices `[batch, ...]`, or class probabilities `[batch, classes, ...]`
            (`[classes]` for a single example, with `num_classes`).
        smoothing: Share $s$ of the probability that is spread over all classes, in [0, 1].
        num_classes: Number of classes $C$. Required for class indices, and for the probabilities
            of a single example.
        class_dim: Dimension of the classes in the probabilities: 1, or -1 for
            `[batch, ..., classes]`, such as the tokens of a language model.
        ignore_index: Class index of positions without a label, such as padding.

    Returns:
        Probabilities `[batch, classes, ...]`, in the default dtype for class indices, otherwise in
        the dtype of `targets`. Use a loss that takes probabilities, such as `cross_entropy`. The
        probabilities of a position without a label are all 0, so it adds nothing to the loss, but
        the mean of `cross_entropy` still counts it: divide the sum by the number of labels.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `smoothing` is not in [0, 1], `num_classes` is missing or wrong, or the targets
            are numbers without a dimension of classes, `[batch]` or `[batch, 1]`.
        RuntimeError: An index is neither in [0, num_classes) nor `ignore_index`. PyTorch raises it,
            on a GPU at the next synchronization.

    Example:
        >>> smooth_labels(torch.tensor([2, 0]), smoothing=0.3, num_classes=3)
        tensor([[0.1000, 0.1000, 0.8000],
                [0.8000, 0.1000, 0.1000]])
    """
    classes = count_classes(targets, num_classes, class_dim)
    rest = smoothing / max(classes, 1)
    if not targets.is_floating_point():
        on = 1 - smoothing + rest
        return class_probabilities(
            targets, classes, on=on, off=rest, class_dim=class_dim, ignore_index=ignore_index
        )
    _check_has_classes(targets, num_classes, class_dim)
    if not smoothing:
        return targets.clone()
    # The sum of each position is kept, since positions without a label sum to 0.
    dim, precise = dim_of_classes(targets, class_dim), compute_dtype(targets.dtype)
    total = targets.sum(dim, keepdim=True, dtype=precise)
    total = torch.where((total - 1).abs() < _ROUNDING, 1.0, total)
    return (targets * (1 - smoothing) + total * rest).to(targets.dtype)


def _check_has_classes(targets: Tensor, num_classes: int | None, class_dim: int) -> None:
    """Raise an error for numbers, such as targets of a regression or of a single logit."""
    lone = targets.ndim == 1 and num_classes is None
    if lone or targets.shape[dim_of_classes(targets, class_dim)] == 1:
        raise ValueError(
            f"targets of dtype {targets.dtype} must be class probabilities [batch, classes, ...] "
            f"of 2 or more classes, not numbers of shape {tuple(targets.shape)}; pass class "
            "indices, or num_classes for the probabilities of a single example."
        )
