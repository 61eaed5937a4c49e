"""RandAugment, as an algorithm."""

from functools import partial

import attrs

from composable.algorithms._pixels import as_tuple, on_pixels, per_channel
from composable.algorithms._validators import integer, number, one_of
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import randaugment

__all__ = ["RandAugment"]


@attrs.frozen(repr=False)
class RandAugment(Algorithm):
    """Apply a few random operations to each image: see `composable.functional.randaugment`.

    The images are uint8, or floats in [0, 1]. Where the data loader has normalized them, say how,
    and they are augmented as they were before.

    Args:
        severity: Upper bound of the levels of the operations, in [0, 10].
        depth: Number of operations per image, 0 or more.
        augmentations: The set of operations: "all", "safe" (for images that are neither grey nor
            RGB, too) or "original".
        mean: What was subtracted from each channel, where the images are normalized.
        std: What each channel was then divided by.
    """

    severity: float = attrs.field(default=9, validator=number(0, 10))
    depth: int = attrs.field(default=2, validator=integer(0))
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
        return state.with_batch(inputs=on_pixels(augment, state.inputs, self.mean, self.std))
