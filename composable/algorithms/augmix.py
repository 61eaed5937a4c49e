"""AugMix, as an algorithm."""

from functools import partial
from typing import Any

import attrs

from composable.algorithms._pixels import as_tuple, on_pixels, per_channel
from composable.algorithms._validators import integer, number, one_of
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import augmix

__all__ = ["AugMix"]


def depth_of_chains(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """-1, or an integer from 1 on."""
    integer(-1)(instance, attribute, value)
    if value == 0:
        raise ValueError("depth=0 must be 1 or more, or -1 to draw 1, 2 or 3 for each chain.")


@attrs.frozen(repr=False)
class AugMix(Algorithm):
    """Mix each image with several of its own augmentations: see `composable.functional.augmix`.

    The images are uint8, or floats in [0, 1]. Where the data loader has normalized them, say how,
    and they are augmented as they were before.

    Args:
        severity: Upper bound of the levels of the operations, in [0, 10].
        depth: Number of operations in a chain, 1 or more; -1 draws 1, 2 or 3 for each chain.
        width: Number of chains, 1 or more.
        alpha: Parameter of the distributions of the weights, above 0.
        augmentations: The set of operations: "all", "safe" (for images that are neither grey nor
            RGB, too) or "original".
        mean: What was subtracted from each channel, where the images are normalized.
        std: What each channel was then divided by.
    """

    severity: float = attrs.field(default=3, validator=number(0, 10))
    depth: int = attrs.field(default=-1, validator=depth_of_chains)
    width: int = attrs.field(default=3, validator=integer(1))
    alpha: float = attrs.field(default=1.0, validator=number(0, ends="()"))
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
            augmix,
            severity=self.severity,
            depth=self.depth,
            width=self.width,
            alpha=self.alpha,
            augmentations=self.augmentations,
            generator=state.generator(self.name),
        )
        return state.with_batch(inputs=on_pixels(augment, state.inputs, self.mean, self.std))
