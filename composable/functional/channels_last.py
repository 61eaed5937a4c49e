"""Channels-last memory format: the channels of a pixel are contiguous in memory."""

import torch
from torch import nn

from composable._support.checks import check_module
from composable._support.surgery import (
    check_uncompiled,
    check_unwrapped,
    report_nothing,
    with_tensors,
)


def channels_last(model: nn.Module) -> nn.Module:
    """Convert 4-dimensional tensors, such as `Conv2d` weights, to the channels-last memory format.

    Values, shapes and names don't change, only strides. A convolution with a channels-last weight
    returns channels-last outputs for inputs of any memory format, so the format propagates through
    the network. Tensor cores compute such convolutions faster, especially in low precision.

    Args:
        model: Any module. It is not modified. The result shares its tensors, except that converted
            ones are copied into new parameters.

    Returns:
        The new model; `model` itself if all tensors are channels-last already (idempotent).

    Raises:
        TypeError: `model` is not a module.
        ValueError: The model is wrapped for distributed training, or compiled.

    Warns:
        NoEffectWarning: No tensor has 4 dimensions.

    Example:
        >>> conv = channels_last(nn.Conv2d(3, 8, 3))
        >>> conv.weight.is_contiguous(memory_format=torch.channels_last)
        True
        >>> conv(torch.rand(2, 3, 8, 8)).is_contiguous(memory_format=torch.channels_last)
        True
    """
    check_module("model", model)
    check_unwrapped(model)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    of_images = {name: tensor for name, tensor in tensors.items() if tensor.ndim == 4}
    if not of_images:
        report_nothing("channels_last", "parameters and buffers of 4 dimensions")
        return model
    other = {
        name: tensor.detach().contiguous(memory_format=torch.channels_last)
        for name, tensor in of_images.items()
        if not tensor.is_contiguous(memory_format=torch.channels_last)
    }
    if not other:
        return model
    check_uncompiled(model, [name.rpartition(".")[0] for name in other])
    return with_tensors(model, other)
