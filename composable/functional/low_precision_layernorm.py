"""Low-precision layer normalization: compute it in the dtype of autocast, not in float32.

Ba, Kiros and Hinton, "Layer Normalization", 2016, https://arxiv.org/abs/1607.06450, define the
norm. Its computation in low precision is common practice.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from .layers.low_precision import LowPrecision, lower_norms

__all__ = ["LowPrecisionLayerNorm", "low_precision_layernorm"]


def low_precision_layernorm(model: nn.Module, *, precision: torch.dtype | None = None) -> nn.Module:
    """Replace layer norms by layers that compute in the dtype of autocast.

    On a GPU, autocast runs a `LayerNorm` in float32, and the next layer casts down again. The
    replacements cast inputs, weight and bias to low precision instead, and return outputs in low
    precision. Their parameters stay in float32. Without autocast the layers compute the same as
    before. float64 inputs are computed in float64.

    Keys of the state dict, options, mode, hooks and subclasses don't change. Subclasses with their
    own `forward` are skipped, and so are low-precision layers, so the function is idempotent.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        precision: `torch.float16` or `torch.bfloat16`, to compute in this dtype with or without
            autocast; without autocast, the outputs are cast to the dtype of the inputs. None for
            the dtype of autocast, if it is enabled.

    Returns:
        The new model; `model` itself if there is nothing to replace.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `precision` is another dtype, or the model is wrapped for distributed training.

    Warns:
        NoEffectWarning: Nothing was replaced, or a replacement may be bypassed.

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
    """A `LayerNorm` in low precision, with its arguments and `precision`."""

    def _normalized(self, inputs: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return layer_norm(inputs, self.normalized_shape, weight, bias, self.eps)
