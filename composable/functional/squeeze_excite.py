"""Squeeze-and-excitation: rescale channels by a gate of their global means.

Hu, Shen, Albanie, Sun and Wu, "Squeeze-and-Excitation Networks", CVPR 2018,
https://arxiv.org/abs/1709.01507
"""

from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from composable._support.checks import check_count, check_generator, check_range, checked
from composable._support.sampling import draw_weights

from ._reclass import reclass, refuse_lazy
from .replace_modules import replace_or_report

__all__ = ["SqueezeExcitation", "squeeze_excite"]

CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def check_latent_channels(name: str, value: Any) -> None:
    """Raise an error unless the value is a count of channels, or a share of all channels."""
    advice = "a number below 1 is a share of the output channels"
    check_range(name, value, 0, ends="()", advice=advice)
    if value >= 1 and value != int(value):
        raise ValueError(f"{name}={value!r} must be an integer; {advice}.")


@checked(latent_channels=check_latent_channels, min_channels=check_count)
def squeeze_excite(
    model: nn.Module,
    *,
    latent_channels: int | float = 64,
    min_channels: int = 128,
    generator: torch.Generator | None = None,
) -> nn.Module:
    r"""Add squeeze-and-excitation blocks after convolutions, in 1 to 3 dimensions.

    With the output $u$ of a convolution and its mean $\bar u$ over all positions, it computes

    $$y = u \cdot \sigma(W_2 \, \mathrm{relu}(W_1 \bar u))$$

    The new weights are `<layer>.squeeze_excite.*` in the state dict, with the dtype and device of
    the weight of the layer. All other keys stay the same, so the weights of the old model can be
    loaded with `strict=False`. Layers that have the block are skipped.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        latent_channels: Size of $W_1 \bar u$: an integer, or a share below 1 of the output
            channels of the layer, rounded down to at least 1.
        min_channels: Minimum number of input and output channels of a convolution to extend.
        generator: Random number generator of the new weights, which are uniform in ±1/√(inputs),
            as in `nn.Linear`. Default: torch's global generator.

    Returns:
        The new model; `model` itself if there is nothing to replace.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `latent_channels` is 0 or less, `min_channels` is negative, a convolution is
            lazy and its channels are not known yet, or the model is wrapped for distributed
            training.

    Warns:
        NoEffectWarning: Nothing was replaced, or a replacement may be bypassed.

    Example:
        >>> draw = torch.Generator().manual_seed(0)
        >>> model = squeeze_excite(nn.Conv2d(128, 256, 3), latent_channels=0.25, generator=draw)
        >>> model(torch.rand(2, 128, 8, 8)).shape
        torch.Size([2, 256, 6, 6])
        >>> model.squeeze_excite
        SqueezeExcitation(256, latent_channels=64)
    """

    def rule(name: str, module: nn.Module) -> nn.Module:
        refuse_lazy(name, module, CONVS, "squeeze_excite")
        if not isinstance(module, CONVS) or isinstance(module, _Excited):
            return module
        if min(module.in_channels, module.out_channels) < min_channels:
            return module
        new: nn.Module = reclass(module, _Excited, prefix="Excited")
        weight = next(module.parameters())
        new.squeeze_excite = SqueezeExcitation(
            module.out_channels, latent_channels=latent_channels, generator=generator
        ).to(weight.device, weight.dtype)
        return new.train(module.training)

    sought = f"Conv1d, Conv2d and Conv3d with at least {min_channels} input and output channels"
    return replace_or_report(model, rule, _Excited, "squeeze_excite", sought)


class SqueezeExcitation(nn.Module):
    """A gate that rescales each channel by the means of all channels; see `squeeze_excite`.

    Args:
        channels: Number of channels of the inputs.
        latent_channels: Channels between the two layers; see `squeeze_excite`.
        generator: Random number generator of the weights. Default: torch's global generator.

    Example:
        >>> layer = SqueezeExcitation(8, latent_channels=2)
        >>> layer(torch.rand(4, 8, 16, 16)).shape
        torch.Size([4, 8, 16, 16])
    """

    def __init__(
        self,
        channels: int,
        *,
        latent_channels: int | float = 64,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_count("channels", channels, 1)
        check_latent_channels("latent_channels", latent_channels)
        check_generator("generator", generator)
        share = latent_channels if latent_channels >= 1 else latent_channels * channels
        latent = max(1, int(share))
        self.squeeze = nn.Parameter(draw_weights((latent, channels), generator=generator))
        self.excite = nn.Parameter(draw_weights((channels, latent), generator=generator))

    def reset_parameters(self) -> None:
        """Draw the weights again, from torch's global generator."""
        with torch.no_grad():
            for weight in (self.squeeze, self.excite):
                weight.copy_(draw_weights(weight.shape, generator=None))

    def forward(
        self, inputs: Shaped[Tensor, " batch channels *rest"]
    ) -> Shaped[Tensor, " batch channels *rest"]:
        """Rescale the channels of the inputs."""
        return self.scaled(inputs, inputs.ndim - 2)

    def scaled(self, inputs: Tensor, dims: int) -> Tensor:
        """Rescale the channels of inputs with `dims` spatial dimensions."""
        means = inputs.flatten(inputs.ndim - dims).mean(-1) if dims else inputs
        latent = nn.functional.linear(means, self.squeeze).relu()
        scale = nn.functional.linear(latent, self.excite).sigmoid()
        return inputs * scale.reshape(scale.shape + (1,) * dims).to(inputs.dtype)

    def extra_repr(self) -> str:
        latent, channels = self.squeeze.shape
        return f"{channels}, latent_channels={latent}"


class _Excited(nn.Module):
    """A convolution with a squeeze-and-excitation block after it."""

    squeeze_excite: SqueezeExcitation
    kernel_size: tuple[int, ...]

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        outputs: Tensor = super().forward(*args, **kwargs)
        return self.squeeze_excite.scaled(outputs, len(self.kernel_size))
