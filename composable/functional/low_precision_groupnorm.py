"""Low-precision group normalization: compute it in the dtype of autocast, not in float32.

Wu and He, "Group Normalization", ECCV 2018, https://arxiv.org/abs/1803.08494, define the norm. Its
computation in low precision is common practice.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import group_norm

from composable._support.checks import check_precision, checked

from .layers.low_precision import LowPrecision, lower_norms


@checked(precision=check_precision)
def low_precision_groupnorm(model: nn.Module, *, precision: torch.dtype | None = None) -> nn.Module:
    """Replace group norms by layers that compute in the dtype of autocast.

    The details are the same as for layer norms; see `low_precision_layernorm`.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        precision: `torch.float16` or `torch.bfloat16`; None for the dtype of autocast.

    Returns:
        The new model; `model` itself if there is nothing to replace.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `precision` is another dtype, or the model is wrapped for distributed training.

    Warns:
        NoEffectWarning: Nothing was replaced, or a replacement may be bypassed.

    Example:
        >>> model = low_precision_groupnorm(nn.GroupNorm(2, 4))
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     model(torch.rand(2, 4, 3, 3)).dtype
        torch.bfloat16
    """
    return lower_norms(
        model, "low_precision_groupnorm", {nn.GroupNorm: LowPrecisionGroupNormLayer}, precision
    )


class LowPrecisionGroupNormLayer(LowPrecision, nn.GroupNorm):
    """A `GroupNorm` in low precision, with its arguments and `precision`."""

    def _normalized(self, inputs: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return group_norm(inputs, self.num_groups, weight, bias, self.eps)
