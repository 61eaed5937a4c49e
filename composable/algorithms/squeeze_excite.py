"""Squeeze-and-excitation, as an algorithm."""

import attrs

from composable.algorithms._surgery import Surgery
from composable.algorithms._validators import integer_at_least, passes
from composable.functional import squeeze_excite
from composable.functional.squeeze_excite import check_latent_channels

__all__ = ["SqueezeExcite"]


@attrs.frozen(repr=False)
class SqueezeExcite(Surgery):
    """Add squeeze-and-excitation blocks: see `composable.functional.squeeze_excite`.

    Args:
        latent_channels: Channels between the two layers of the gate: an integer, or a share of
            the output channels of the convolution.
        min_channels: Minimum number of input and output channels of a convolution to extend.
    """

    latent_channels: int | float = attrs.field(default=64, validator=passes(check_latent_channels))
    min_channels: int = attrs.field(default=128, validator=integer_at_least(0))

    surgery = staticmethod(squeeze_excite)
    reads = frozenset({"model", "key"})
    replaces = frozenset({"convolution"})
    after = frozenset({"BlurPool"})  # the result is the same in either order
