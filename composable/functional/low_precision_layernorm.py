"""Low-precision layer normalization: compute it in the dtype of autocast, not in float32.

Ba, Kiros and Hinton, "Layer Normalization", 2016, https://arxiv.org/abs/1607.06450, define the
norm, and Zhang and Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019,
https://arxiv.org/abs/1910.07467, the RMS norm. Their computation in low precision is common
practice.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, rms_norm

from composable._support.checks import check_precision, checked
from composable._support.registry import named

from .layers.low_precision import LowPrecision, lower_norms


@checked(precision=check_precision)
def low_precision_layernorm(model: nn.Module, *, precision: torch.dtype | None = None) -> nn.Module:
    """Replace layer norms and RMS norms by layers that compute in the dtype of autocast.

    On a GPU, autocast runs a `LayerNorm` in float32, and the next layer casts down again. The
    replacements cast inputs, weight and bias to low precision instead, and return outputs in low
    precision. Their parameters stay in float32. Without autocast the layers compute the same as
    before, if weights or inputs have 32 bits. float64 inputs are computed in float64.

    The RMS norms are those of torch, and of Llama, Mistral, Mixtral, Phi-3, Qwen2, Qwen3 and T5 of
    Hugging Face, which compute in float32 even where autocast does not. `LayerNorm`, `LayerNorm2d`
    and `RmsNorm` of timm and `LayerNorm2d` of torchvision are replaced, too; norms that compute in
    float32 by name, such as timm's `LayerNormFp32`, are not.

    Keys of the state dict don't change. Other subclasses with their own `forward` are skipped, and
    so are low-precision layers.

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
    return lower_norms(model, "low_precision_layernorm", KINDS, precision)


class LowPrecisionLayerNormLayer(LowPrecision, nn.LayerNorm):
    """A `LayerNorm` in low precision, with its arguments and `precision`."""

    def _normalized(self, inputs: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return layer_norm(inputs, self.normalized_shape, weight, bias, self.eps)


class LowPrecisionRMSNormLayer(LowPrecision, nn.RMSNorm):
    """An `RMSNorm` in low precision, with its arguments and `precision`."""

    def _normalized(self, inputs: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        # The default of torch depends on the dtype of the inputs, and would be 0.008 in bfloat16.
        eps = torch.finfo(torch.float32).eps if self.eps is None else self.eps
        return rms_norm(inputs, self.normalized_shape, weight, eps)


class _OfHuggingFace(LowPrecision):
    """The RMS norms of Hugging Face, which are of no class of torch."""

    variance_epsilon: float

    def _normalized(self, inputs: Tensor, weight: Any, bias: Tensor | None) -> Tensor:
        return rms_norm(inputs, weight.shape, weight, self.variance_epsilon)


class _OfImages(LowPrecision):
    """The layer norms of timm and torchvision over the channels, the second dimension."""

    normalized_shape: tuple[int, ...]
    eps: float

    def _normalized(self, inputs: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        channels_last = inputs.movedim(1, -1)
        outputs = layer_norm(channels_last, self.normalized_shape, weight, bias, self.eps)
        return outputs.movedim(-1, 1)


_FAMILIES = ("Llama", "Mistral", "Mixtral", "Phi3", "Qwen2", "Qwen3")
KINDS: dict[type | str, type[LowPrecision]] = {
    nn.LayerNorm: LowPrecisionLayerNormLayer,
    nn.RMSNorm: LowPrecisionRMSNormLayer,
    **named(_OfHuggingFace, *(f"{name.lower()}.{name}RMSNorm" for name in _FAMILIES)),
    **named(_OfHuggingFace, "t5.T5LayerNorm"),
    "timm.layers.norm.LayerNorm": LowPrecisionLayerNormLayer,
    "timm.layers.norm.RmsNorm": LowPrecisionRMSNormLayer,
    "timm.layers.norm.LayerNorm2d": _OfImages,
    "torchvision.models.convnext.LayerNorm2d": _OfImages,
}
