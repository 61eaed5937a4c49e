"""Alternating flip, as an algorithm."""

from functools import partial

import attrs

from composable._support.checks import check_tensor
from composable.algorithms._by_example import draw_of_examples
from composable.algorithms._dense_targets import move_pixels
from composable.algorithms._normalization import Augmentation
from composable.core.event import Event
from composable.core.state import State
from composable.data.indexed import check_index_key
from composable.functional import apply_alternating_flip, draw_alternating_flip


@attrs.frozen(repr=False)
class AlternatingFlip(Augmentation):
    """Flip images in every other epoch: see `composable.functional.alternating_flip`.

    Batches must have the indices of their examples: see `composable.data.Indexed`. Dense targets of
    the same height and width are flipped with their images.

    Args:
        index_key: The place of the indices in the batch, an index or a name. Default: as in
            `Indexed`.
    """

    index_key: int | str | None = attrs.field(default=None, validator=check_index_key)

    def apply(self, event: Event, state: State) -> State:
        """Flip some images of the batch."""
        check_tensor("inputs", state.inputs)
        draw = draw_alternating_flip(**draw_of_examples(state, self.name, self.index_key))
        return move_pixels(state, partial(apply_alternating_flip, draw=draw))
