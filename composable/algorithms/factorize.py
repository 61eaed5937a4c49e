"""Factorization, as an algorithm."""

import attrs

from composable._support.checks import check_any
from composable.algorithms._surgery import Surgery
from composable.algorithms._validators import boolean, integer_at_least, one_of, passes
from composable.functional import factorize
from composable.functional.factorize import INITS, check_latent_size

__all__ = ["Factorize"]


@attrs.frozen(repr=False)
class Factorize(Surgery):
    """Replace wide layers by low-rank pairs of layers: see `composable.functional.factorize`.

    It runs before the other algorithms that replace convolutions, so that they apply to the pairs.

    Args:
        factorize_convs: Replace convolutions.
        factorize_linears: Replace linear layers.
        min_channels: Minimum number of input and output channels of a convolution to replace.
        latent_channels: Channels between a pair of convolutions: an integer, or a share of the
            input or output channels, whichever are fewer.
        min_features: Minimum number of input and output features of a linear layer to replace.
        latent_features: Features between a pair of linear layers: an integer, or a share of the
            input or output features, whichever are fewer.
        init: "svd" for the best approximation, "randomized" for a faster one, or "random" to draw
            new weights.
    """

    factorize_convs: bool = attrs.field(default=True, validator=boolean)
    factorize_linears: bool = attrs.field(default=True, validator=boolean)
    min_channels: int = attrs.field(default=512, validator=integer_at_least(0))
    latent_channels: int | float = attrs.field(default=0.25, validator=passes(check_latent_size))
    min_features: int = attrs.field(default=512, validator=integer_at_least(0))
    latent_features: int | float = attrs.field(default=0.25, validator=passes(check_latent_size))

    init: str = attrs.field(default="svd", validator=one_of(*INITS))

    def __attrs_post_init__(self) -> None:
        check_any(
            "factorize_convs", self.factorize_convs, "factorize_linears", self.factorize_linears
        )

    surgery = staticmethod(factorize)
    reads = frozenset({"model", "key"})
    before = frozenset({"BlurPool", "SqueezeExcite", "WeightStandardization"})
    replaces = frozenset({"convolution", "linear layer"})
