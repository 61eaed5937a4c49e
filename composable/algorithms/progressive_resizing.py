"""Progressive resizing, as an algorithm."""

import attrs

from composable._support.checks import with_fields
from composable.algorithms._dense_targets import check_no_dense_targets, with_resized
from composable.algorithms._validators import boolean, in_range, integer_at_least, one_of
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import progressive_scale, resize_batch


@attrs.frozen(repr=False)
class ProgressiveResizing(Algorithm):
    """Start training on small images: see `composable.functional.resize_batch`.

    `composable.functional.progressive_scale` is the schedule of the scale.

    Args:
        mode: `"resize"` interpolates, `"crop"` selects a region at a random position.
        initial_scale: Scale at the start, in (0, 1].
        finetune_fraction: Share of training, at its end, with images of full size.
        delay_fraction: Share of training, at its start, with images of the initial scale.
        size_increment: Divisor of the sizes of the resized images.
        resize_targets: Resize dense targets, with one value per pixel, like the inputs.
    """

    mode: str = attrs.field(default="resize", validator=one_of("resize", "crop"))
    initial_scale: float = attrs.field(default=0.5, validator=in_range(0, 1, ends="(]"))
    finetune_fraction: float = attrs.field(default=0.2, validator=in_range(0, 1))
    delay_fraction: float = attrs.field(default=0.5, validator=in_range(0, 1))
    size_increment: int = attrs.field(default=4, validator=integer_at_least(1))
    resize_targets: bool = attrs.field(default=False, validator=boolean)

    events = frozenset({Event.AFTER_DATALOADER})
    stage = Stage.RESIZE
    reads = frozenset({"batch", "key", "timestamp", "max_duration", "epoch_length"})
    writes = frozenset({"batch"})

    def __attrs_post_init__(self) -> None:
        with_fields(self, progressive_scale)(0.0)  # checks their sum

    def apply(self, event: Event, state: State) -> State:
        """Resize the batch to the scale of this time of training."""
        scale = with_fields(self, progressive_scale)(state.elapsed)
        if scale == 1:
            return state
        if self.mode == "crop" and not self.resize_targets:
            check_no_dense_targets(
                state, f"{self.name} can't leave uncropped", "pass resize_targets=True"
            )
        dense = state.targets if self.resize_targets else None
        resize, generator = with_fields(self, resize_batch), state.generator(self.name)
        small = resize(state.inputs, dense, scale_factor=scale, generator=generator)
        return with_resized(state, small)
