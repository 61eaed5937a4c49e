"""Channels-last: let the channels of a pixel lie next to each other in memory."""

import torch
from torch import nn

from ._checks import check_module
from ._surgery import check_uncompiled, check_unwrapped, report_nothing, with_tensors

__all__ = ["channels_last"]


def channels_last(model: nn.Module) -> nn.Module:
    """Lay out all tensors of 4 dimensions, such as the weights of a `Conv2d`, channels last.

    Their values, shapes and names stay; only their strides differ. A convolution whose weight is
    channels-last gives its outputs channels-last, whatever the layout of its inputs, so the layout
    spreads by itself. Tensor cores compute such convolutions faster, in low precision above all.

    Args:
        model: Any module; it is left as it was. The result shares its tensors, but for those that
            are laid out anew: these are copies, and new parameters.

    Returns:
        The new model; `model` itself where all are channels-last already, so twice is once.

    Raises:
        TypeError: `model` is no module.
        ValueError: It is wrapped for distributed training, or was compiled.

    Warns:
        NoEffectWarning: There is no tensor of 4 dimensions.

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
