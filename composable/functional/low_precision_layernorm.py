"""Low-precision layer normalisation: compute it in the dtype of autocast, not in float32.

Ba, Kiros and Hinton, "Layer Normalization", 2016, https://arxiv.org/abs/1607.06450, is the norm;
that it needn't leave the low precision is an observation of practice.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from ._low_precision import LowPrecision, lower_norms

__all__ = ["LowPrecisionLayerNorm", "low_precision_layernorm"]


def low_precision_layernorm(model: nn.Module, *, precision: torch.dtype | None = None) -> nn.Module:
    """Replace layer norms by ones that are computed in the dtype of autocast.

    Autocast runs a `LayerNorm` in float32 on a GPU, and what follows casts down again. These cast
    inputs, weight and bias to the low precision instead, and give outputs in it. Their parameters
    stay as they are, in float32. Outside of autocast the layers compute what they did. float64
    stays float64.

    Keys of the state dict, options, mode, hooks and subclasses stay; a subclass with a `forward`
    of its own is left alone. Layers that are of low precision already are, too, so twice is once.

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
        >>> model = low_precision_layernorm(nn.LayerNorm(4))
        >>> model(torch.rand(2, 4)).dtype
        torch.float32
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     model(torch.rand(2, 4)).dtype
        torch.bfloat16
    """
    return lower_norms(
        model, "low_precision_layernorm", nn.LayerNorm, LowPrecisionLayerNorm, precision
    )


class LowPrecisionLayerNorm(LowPrecision, nn.LayerNorm):
    """A `LayerNorm` in low precision: takes its arguments, and `precision`."""

    def _normalized(self, inputs: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return layer_norm(inputs, self.normalized_shape, weight, bias, self.eps)
