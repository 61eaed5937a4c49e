"""RandAugment, as an algorithm."""

import attrs

from composable.algorithms._normalization import PixelAugmentation
from composable.algorithms._validators import in_range, integer_at_least, one_of
from composable.functional import randaugment


@attrs.frozen(repr=False)
class RandAugment(PixelAugmentation):
    """Apply a few random operations to each image: see `composable.functional.randaugment`.

    The images are uint8, or floats in [0, 1]; or normalized by `mean` and `std`, which is undone
    for the augmentation. Targets with a value for each pixel are refused.

    Args:
        severity: Maximum level of the operations, in [0, 10].
        depth: Number of operations per image, 0 or more.
        augmentations: The set of operations: "all", "safe" (for any number of channels) or
            "original".
        mean: Mean of each channel in the normalization of the data loader, if it normalizes.
        std: Standard deviation of each channel in that normalization.
    """

    severity: float = attrs.field(default=9, validator=in_range(0, 10))
    depth: int = attrs.field(default=2, validator=integer_at_least(0))
    augmentations: str = attrs.field(default="all", validator=one_of("all", "safe", "original"))

    augmentation = staticmethod(randaugment)
