"""Squeeze-and-excitation, as an algorithm."""

import attrs

from composable.algorithms._surgery import Surgery
from composable.functional import squeeze_excite


@attrs.frozen(repr=False)
class SqueezeExcite(Surgery):
    """Add squeeze-and-excitation blocks: see `composable.functional.squeeze_excite`.

    Args:
        latent_channels: Channels between the two layers of the gate: an integer, or a share of
            the output channels of the convolution.
        min_channels: Minimum number of input and output channels of a convolution to extend.
    """

    latent_channels: int | float = 64
    min_channels: int = 128

    surgery = staticmethod(squeeze_excite)
    reads = frozenset({"model", "key"})
    replaces = frozenset({"convolution"})
    after = frozenset({"BlurPool"})  # the result is the same in either order
