"""Random translation, as an algorithm."""

from functools import partial

import attrs

from composable._support.spatial import check_spatial
from composable.algorithms._dense_targets import move_pixels
from composable.algorithms._normalization import Augmentation
from composable.algorithms._validators import integer_at_least
from composable.core.event import Event
from composable.core.state import State
from composable.functional import apply_random_translation, draw_random_translation


@attrs.frozen(repr=False)
class RandomTranslation(Augmentation):
    """Shift each image by a few pixels: see `composable.functional.random_translation`.

    Dense targets of the same size are shifted with their images.

    Args:
        max_shift: The largest shift in pixels, 0 or more and less than each side of the images.
    """

    max_shift: int = attrs.field(default=2, validator=integer_at_least(0))

    after = frozenset({"AlternatingFlip"})  # as in airbench

    def apply(self, event: Event, state: State) -> State:
        """Shift the images of the batch."""
        check_spatial("inputs", state.inputs)
        draw = draw_random_translation.unchecked(
            len(state.inputs),
            state.inputs.shape[2:],
            max_shift=self.max_shift,
            generator=state.generator(self.name),
        )
        return move_pixels(state, partial(apply_random_translation, draw=draw))
