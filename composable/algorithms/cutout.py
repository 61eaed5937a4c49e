"""CutOut, as an algorithm."""

import attrs

from composable._support.checks import with_fields
from composable.algorithms._normalization import Augmentation
from composable.algorithms._validators import boolean, integer_at_least, passes
from composable.core.event import Event
from composable.core.state import State
from composable.functional import cutout
from composable.functional.cutout import check_hole_length


@attrs.frozen(repr=False)
class CutOut(Augmentation):
    """Set square regions of the inputs to zero: see `composable.functional.cutout`.

    Args:
        num_holes: Number of holes, 0 or more.
        length: Side of a hole: below 1 a share of the shorter side, from 1 on a number of pixels.
        uniform_sampling: Make every pixel equally likely to be in a hole.
        per_sample: Draw holes per example instead of per batch.
    """

    num_holes: int = attrs.field(default=1, validator=integer_at_least(0))
    length: float = attrs.field(default=0.5, validator=passes(check_hole_length))
    uniform_sampling: bool = attrs.field(default=False, validator=boolean)
    per_sample: bool = attrs.field(default=True, validator=boolean)

    def apply(self, event: Event, state: State) -> State:
        """Cut holes into the inputs of the batch."""
        cut = with_fields(self, cutout)
        inputs = cut(state.inputs, generator=state.generator(self.name))
        return state.with_batch(inputs=inputs)
