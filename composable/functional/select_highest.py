"""Filters of batches: keep the examples with the highest scores.

Jordan, "CIFAR-10 Airbench", 2024, https://github.com/KellerJordan/cifar10-airbench, whose
`airbench96_faster.py` filters batches by the losses of a small proxy.
"""

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from composable._support.checks import check_tensor, checked, within
from composable.functional.select_using_loss import apply_selection, kept_count


@checked(keep=within(0, 1, ends="(]"))
def select_highest(losses: Shaped[Tensor, " *batch"], *, keep: float = 0.5) -> Int[Tensor, " kept"]:
    """Select the examples of a batch with the highest losses.

    Args:
        losses: One loss per example, `[batch]`, such as a small proxy's. NaN ranks above all
            numbers; among equal losses, the later example ranks higher.
        keep: Share of the batch to keep, in (0, 1].

    Returns:
        `round(keep * n)` distinct indices, at least one unless the batch is empty, in ascending
        order: `inputs[indices]` keeps the order of the batch.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `keep` is not in (0, 1], or there is not one loss per example.

    Example:
        >>> select_highest(torch.tensor([0.1, 9.0, 0.2, 8.0]), keep=0.5)
        tensor([1, 3])
    """
    check_tensor("losses", losses)
    count = len(losses) if losses.ndim else 0
    ranks = torch.arange(count - kept_count(count, keep), count, device=losses.device)
    return apply_selection(losses, ranks)
