"""Squeeze-and-excitation: let the whole image say how much each channel counts.

Hu, Shen, Albanie, Sun and Wu, "Squeeze-and-Excitation Networks", CVPR 2018,
https://arxiv.org/abs/1709.01507
"""

from math import sqrt
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from ._checks import check_count, check_generator, check_module, check_range
from ._random import home
from ._surgery import replace_modules, report_nothing
from ._take_over import refuse_lazy, take_over

__all__ = ["SqueezeExcitation", "squeeze_excite"]


def squeeze_excite(
    model: nn.Module,
    *,
    latent_channels: int | float = 64,
    min_channels: int = 128,
    generator: torch.Generator | None = None,
) -> nn.Module:
    r"""Let channel attention follow the convolutions, in 1 to 3 dimensions.

    With $u$ the output of the convolution and $\bar u$ its mean over all positions:

    $$y = u \cdot \sigma(W_2 \, \mathrm{relu}(W_1 \bar u))$$

    The layers compute what they did, with all their options, and then this. The new weights are
    `<layer>.squeeze_excite.*` in the state dict; all other keys stay, so the weights of the old
    model load with `strict=False`. They take the dtype and device of the layer's weight. Layers
    with channel attention are left alone, so twice is once.

    Args:
        model: Any module; it is left as it was. The result shares its parameters.
        latent_channels: The size of $W_1 \bar u$: a whole number, or below 1 a fraction of the
            layer's output channels, rounded down to 1 or more.
        min_channels: Convolutions with fewer input or output channels stay.
        generator: Draws the new weights, as `nn.Linear` does: uniform in ±1/√(inputs). Torch's
            global one where None.

    Returns:
        The new model; `model` itself where there was nothing to replace.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `latent_channels` is 0 or less, `min_channels` is negative, a convolution is
            lazy and does not know its channels yet, or the model is wrapped for distributed
            training.

    Warns:
        NoEffectWarning: Nothing was found, or a replacement may be bypassed.

    Example:
        >>> draw = torch.Generator().manual_seed(0)
        >>> model = squeeze_excite(nn.Conv2d(128, 256, 3), latent_channels=0.25, generator=draw)
        >>> model(torch.rand(2, 128, 8, 8)).shape
        torch.Size([2, 256, 6, 6])
        >>> model.squeeze_excite
        SqueezeExcitation(256, latent_channels=64)
    """
    check_module("model", model)
    _check_latent(latent_channels)
    check_count("min_channels", min_channels)
    check_generator(generator)

    def rule(name: str, module: nn.Module) -> nn.Module:
        refuse_lazy(name, module, CONVS, "squeeze_excite")
        for plain, excited in CONVS.items():
            if isinstance(module, plain) and not isinstance(module, _Excited):
                if min(module.in_channels, module.out_channels) < min_channels:
                    return module
                new: nn.Module = take_over(module, excited, prefix="Excited")
                weight = next(module.parameters())
                new.squeeze_excite = SqueezeExcitation(
                    module.out_channels, latent_channels=latent_channels, generator=generator
                ).to(weight.device, weight.dtype)
                return new.train(module.training)
        return module

    new, count = replace_modules(model, rule)
    if count == 0 and not any(isinstance(module, _Excited) for module in model.modules()):
        report_nothing(
            "squeeze_excite",
            f"Conv1d, Conv2d and Conv3d with at least {min_channels} input and output channels",
        )
    return new


class SqueezeExcitation(nn.Module):
    """Scale every channel by what the means of all channels say; see `squeeze_excite`.

    Args:
        channels: How many channels the inputs have.
        latent_channels: As for `squeeze_excite`.
        generator: Draws the weights.

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
        _check_latent(latent_channels)
        latent = (
            latent_channels if latent_channels >= 1 else max(1, int(latent_channels * channels))
        )
        self.squeeze = nn.Parameter(_draw(int(latent), channels, generator))
        self.excite = nn.Parameter(_draw(channels, int(latent), generator))

    def forward(
        self, inputs: Shaped[Tensor, " batch channels *rest"]
    ) -> Shaped[Tensor, " batch channels *rest"]:
        """Give the scaled inputs."""
        return self.scaled(inputs, inputs.ndim - 2)

    def scaled(self, inputs: Tensor, dims: int) -> Tensor:
        """Give the scaled inputs, whose last `dims` dimensions are positions."""
        means = inputs.flatten(inputs.ndim - dims).mean(-1) if dims else inputs
        latent = nn.functional.linear(means, self.squeeze).relu()
        scale = nn.functional.linear(latent, self.excite).sigmoid()
        return inputs * scale.reshape(scale.shape + (1,) * dims).to(inputs.dtype)

    def extra_repr(self) -> str:
        latent, channels = self.squeeze.shape
        return f"{channels}, latent_channels={latent}"


class _Excited(nn.Module):
    """A convolution, and then channel attention."""

    squeeze_excite: SqueezeExcitation
    kernel_size: tuple[int, ...]

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        outputs: Tensor = super().forward(*args, **kwargs)
        return self.squeeze_excite.scaled(outputs, len(self.kernel_size))


class ExcitedConv1d(_Excited, nn.Conv1d):
    """A `Conv1d` with channel attention, as `squeeze_excite` makes it."""


class ExcitedConv2d(_Excited, nn.Conv2d):
    """A `Conv2d` with channel attention, as `squeeze_excite` makes it."""


class ExcitedConv3d(_Excited, nn.Conv3d):
    """A `Conv3d` with channel attention, as `squeeze_excite` makes it."""


CONVS = {nn.Conv1d: ExcitedConv1d, nn.Conv2d: ExcitedConv2d, nn.Conv3d: ExcitedConv3d}


def _check_latent(latent_channels: int | float) -> None:
    advice = "A whole number counts channels; a number below 1 is a fraction of them."
    check_range("latent_channels", latent_channels, 0, ends="(]", advice=advice)
    if latent_channels >= 1 and latent_channels != int(latent_channels):
        raise ValueError(f"latent_channels is {latent_channels!r}, but must be whole. {advice}")


def _draw(outputs: int, inputs: int, generator: torch.Generator | None) -> Tensor:
    bound = 1 / sqrt(inputs)
    weight = torch.empty(outputs, inputs, device=home(generator))
    return weight.uniform_(-bound, bound, generator=generator)
