"""Progressive resizing, as an algorithm."""

import attrs

from composable.algorithms._validators import flag, integer, number, one_of
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import progressive_scale, resize_batch

__all__ = ["ProgressiveResizing"]


@attrs.frozen(repr=False)
class ProgressiveResizing(Algorithm):
    """Begin on small images: see `composable.functional.resize_batch`.

    The scale grows as `composable.functional.progressive_scale` says.

    Args:
        mode: `"resize"` interpolates, `"crop"` cuts out a region at a random place.
        initial_scale: The scale at the start, in (0, 1].
        finetune_fraction: The share of the training, at its end, with images of full size.
        delay_fraction: The share of the training, at its start, with images of that scale.
        size_increment: Lengths of sides are multiples of this.
        resize_targets: Do the same to targets, which have a value for each pixel.
    """

    mode: str = attrs.field(default="resize", validator=one_of("resize", "crop"))
    initial_scale: float = attrs.field(default=0.5, validator=number(0, 1, ends="(]"))
    finetune_fraction: float = attrs.field(default=0.2, validator=number(0, 1))
    delay_fraction: float = attrs.field(default=0.5, validator=number(0, 1))
    size_increment: int = attrs.field(default=4, validator=integer(1))
    resize_targets: bool = attrs.field(default=False, validator=flag)

    events = frozenset({Event.AFTER_DATALOADER})
    stage = Stage.RESIZE
    reads = frozenset({"batch", "key", "timestamp", "max_duration", "epoch_length"})
    writes = frozenset({"batch"})

    def __attrs_post_init__(self) -> None:
        if self.delay_fraction + self.finetune_fraction > 1:
            raise ValueError(
                f"delay_fraction={self.delay_fraction!r} and "
                f"finetune_fraction={self.finetune_fraction!r} must be at most 1 together."
            )

    def apply(self, event: Event, state: State) -> State:
        """Make the images of this batch as small as they are early."""
        scale = progressive_scale(
            state.elapsed,
            initial_scale=self.initial_scale,
            finetune_fraction=self.finetune_fraction,
            delay_fraction=self.delay_fraction,
        )
        if scale == 1:
            return state
        small = resize_batch(
            state.inputs,
            state.targets if self.resize_targets else None,
            scale_factor=scale,
            mode=self.mode,
            resize_targets=self.resize_targets,
            size_increment=self.size_increment,
            generator=state.generator(self.name),
        )
        if self.resize_targets:
            return state.with_batch(inputs=small.inputs, targets=small.targets)
        return state.with_batch(inputs=small.inputs)
