"""Label smoothing: mix one-hot targets with the uniform distribution.

Szegedy, Vanhoucke, Ioffe, Shlens and Wojna, "Rethinking the Inception Architecture for Computer
Vision", CVPR 2016, section 7, https://arxiv.org/abs/1512.00567
"""

from jaxtyping import Float, Shaped
from torch import Tensor

from ._checks import check_range, check_tensor
from ._targets import class_probabilities, count_classes

__all__ = ["smooth_labels"]


def smooth_labels(
    targets: Shaped[Tensor, " *shape"],
    *,
    smoothing: float = 0.1,
    num_classes: int | None = None,
) -> Float[Tensor, " *smooth"]:
    r"""Mix targets with the uniform distribution over the classes.

    $$y' = (1 - s) y + s / C$$

    Args:
        targets: Class indices `[batch, ...]`, or class probabilities `[batch, classes, ...]`
            (`[classes]` for a single example).
        smoothing: Share $s$ of the probability that is spread over all classes, in [0, 1].
        num_classes: Number of classes $C$. Required for class indices.

    Returns:
        Probabilities `[batch, classes, ...]`, in the default dtype for class indices, otherwise in
        the dtype of `targets`. Use a loss that takes probabilities, such as `cross_entropy`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `smoothing` is not in [0, 1], or `num_classes` is missing or wrong.
        RuntimeError: An index is not in [0, num_classes). PyTorch raises it, on a GPU at the next
            synchronization, because a check of the values would synchronize every step. This
            includes the ignore index (-100): remove such positions first.

    Example:
        >>> import torch
        >>> smooth_labels(torch.tensor([2, 0]), smoothing=0.3, num_classes=3)
        tensor([[0.1000, 0.1000, 0.8000],
                [0.8000, 0.1000, 0.1000]])
    """
    check_tensor("targets", targets)
    check_range("smoothing", smoothing, 0, 1)
    classes = count_classes(targets, num_classes)
    rest = smoothing / max(classes, 1)
    if targets.is_floating_point():
        return targets * (1 - smoothing) + rest
    return class_probabilities(targets, classes, on=1 - smoothing + rest, off=rest)
