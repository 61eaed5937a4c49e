"""RandAugment, as an algorithm."""

from functools import partial

import attrs

from composable.algorithms._normalization import as_tuple, on_pixels, per_channel
from composable.algorithms._validators import in_range, integer_at_least, one_of
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import randaugment

__all__ = ["RandAugment"]


@attrs.frozen(repr=False)
class RandAugment(Algorithm):
    """Apply a few random operations to each image: see `composable.functional.randaugment`.

    The images are uint8, or floats in [0, 1]. If the data loader normalizes them, pass its `mean`
    and `std`: the normalization is undone for the augmentation. Targets with a value for each pixel
    are refused, since they would have to be moved with the images.

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
    mean: tuple[float, ...] | None = attrs.field(default=None, converter=as_tuple)
    std: tuple[float, ...] | None = attrs.field(
        default=None, converter=as_tuple, validator=per_channel
    )

    events = frozenset({Event.AFTER_DATALOADER})
    stage = Stage.AUGMENT
    reads = frozenset({"batch", "key", "timestamp"})
    writes = frozenset({"batch"})

    def apply(self, event: Event, state: State) -> State:
        """Augment the images of the batch."""
        augment = partial(
            randaugment,
            severity=self.severity,
            depth=self.depth,
            augmentations=self.augmentations,
            generator=state.generator(self.name),
        )
        return state.with_batch(inputs=on_pixels(augment, state, self.name, self.mean, self.std))
