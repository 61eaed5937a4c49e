"""Cautious weight decay: decay only the weights that a step moves towards zero.

Chen et al., "Cautious Weight Decay", 2025, https://arxiv.org/abs/2510.12402
"""

import torch
from torch import Tensor

from composable._support.checks import check_range
from composable._support.foreach import foreach, foreach_, per_dtype

from ._averages import Floats, as_lists

__all__ = ["cautious_weight_decay"]


def cautious_weight_decay(before: Floats, after: Floats, *, decay: float) -> dict[str, Tensor]:
    r"""Decay weights after a step of any optimizer, except those that it moved away from zero.

    With the weights $w$ before and $w'$ after a step without weight decay:

    $$w'' = w' - \eta \lambda \, [\,w \, (w' - w) \le 0\,] \, w$$

    Args:
        before: The weights $w$ by name.
        after: The weights $w'$ by the same names.
        decay: The product $\eta \lambda$ of learning rate and weight decay, 0 or more.

    Returns:
        The new weights by name, in the dtypes of `after`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `decay` is out of range, or names differ.

    Example:
        >>> import torch
        >>> before, after = {"w": torch.tensor([1.0, 1.0])}, {"w": torch.tensor([0.5, 1.5])}
        >>> cautious_weight_decay(before, after, decay=0.25)
        {'w': tensor([0.2500, 1.5000])}
    """
    given = as_lists(before=before, after=after)
    check_range("decay", decay, 0, ends="[)")
    starts, ends = ([tensor.clone() for tensor in tensors] for tensors in given)
    return dict(zip(before, decay_inward(starts, ends, decay), strict=True))


def decay_inward(before: list[Tensor], after: list[Tensor], decay: float) -> list[Tensor]:
    """Compute `cautious_weight_decay` for lists, which it may overwrite."""

    def decayed(ends: list[Tensor], starts: list[Tensor]) -> list[Tensor]:
        # Of the step only its sign: the product of a small step and a small weight may be 0.
        ways = foreach_("mul", foreach_("sign", foreach("sub", ends, starts)), starts)
        inward = [torch.where(w <= 0, start, 0) for w, start in zip(ways, starts, strict=True)]
        return foreach_("add", ends, inward, alpha=-decay)

    return per_dtype(decayed, after, before)
