"""Factorization, as an algorithm."""

import attrs

from composable._support.checks import check_any
from composable.algorithms._surgery import Surgery
from composable.functional import factorize


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

    factorize_convs: bool = True
    factorize_linears: bool = True
    min_channels: int = 512
    latent_channels: int | float = 0.25
    min_features: int = 512
    latent_features: int | float = 0.25

    init: str = "svd"

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        check_any(
            "factorize_convs", self.factorize_convs, "factorize_linears", self.factorize_linears
        )

    surgery = staticmethod(factorize)
    reads = frozenset({"model", "key"})
    before = frozenset({"BlurPool", "SqueezeExcite", "WeightStandardization"})
    replaces = frozenset({"convolution", "linear layer"})
