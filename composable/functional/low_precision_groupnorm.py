"""Low-precision group normalisation: compute it in the dtype of autocast, not in float32.

Wu and He, "Group Normalization", ECCV 2018, https://arxiv.org/abs/1803.08494, is the norm; that
it needn't leave the low precision is an observation of practice.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import group_norm

from ._low_precision import LowPrecision, lower_norms

__all__ = ["LowPrecisionGroupNorm", "low_precision_groupnorm"]


def low_precision_groupnorm(model: nn.Module, *, precision: torch.dtype | None = None) -> nn.Module:
    """Replace group norms by ones that are computed in the dtype of autocast.

    All that `low_precision_layernorm` says of layer norms holds for these.

    Args:
        model: Any module; it is left as it was. The result shares its parameters.
        precision: `torch.float16` or `torch.bfloat16`, to compute in it whether or not autocast is
            on; outside of autocast the outputs are then cast back to the dtype of the inputs. None
            for that of autocast, where it is on.

    Returns:
        The new model; `model` itself where there was nothing to replace.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `precision` is another dtype, or the model is wrapped for distributed training.

    Warns:
        NoEffectWarning: Nothing was found, or a replacement may be bypassed.

    Example:
        >>> model = low_precision_groupnorm(nn.GroupNorm(2, 4))
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     model(torch.rand(2, 4, 3, 3)).dtype
        torch.bfloat16
    """
    return lower_norms(
        model, "low_precision_groupnorm", nn.GroupNorm, LowPrecisionGroupNorm, precision
    )


class LowPrecisionGroupNorm(LowPrecision, nn.GroupNorm):
    """A `GroupNorm` in low precision: takes its arguments, and `precision`."""

    def _normalized(self, inputs: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return group_norm(inputs, self.num_groups, weight, bias, self.eps)
