"""AugMix, as an algorithm."""

import attrs

from composable.algorithms._normalization import PixelAugmentation
from composable.algorithms._validators import in_range, integer_at_least, one_of, passes
from composable.functional import augmix
from composable.functional.augmix import check_depth


@attrs.frozen(repr=False)
class AugMix(PixelAugmentation):
    """Mix each image with several of its own augmentations: see `composable.functional.augmix`.

    The images are uint8, or floats in [0, 1]; or normalized by `mean` and `std`, which is undone
    for the augmentation. Targets with a value for each pixel are refused.

    Args:
        severity: Maximum level of the operations, in [0, 10].
        depth: Number of operations in a chain, 1 or more; -1 draws 1, 2 or 3 for each chain.
        width: Number of chains, 1 or more.
        alpha: Parameter of the Dirichlet and Beta distributions of the weights, above 0.
        augmentations: The set of operations: "all", "safe" (for any number of channels) or
            "original".
        mean: Mean of each channel in the normalization of the data loader, if it normalizes.
        std: Standard deviation of each channel in that normalization.
    """

    severity: float = attrs.field(default=3, validator=in_range(0, 10))
    depth: int = attrs.field(default=-1, validator=passes(check_depth))
    width: int = attrs.field(default=3, validator=integer_at_least(1))
    alpha: float = attrs.field(default=1.0, validator=in_range(0, ends="()"))
    augmentations: str = attrs.field(default="all", validator=one_of("all", "safe", "original"))

    augmentation = staticmethod(augmix)
