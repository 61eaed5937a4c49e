"""Alternating flip, as an algorithm."""

import attrs
from torch import Tensor

from composable._support.checks import check_tensor
from composable._support.spatial import is_dense
from composable.algorithms._by_example import draw_of_examples
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.data.indexed import check_index_key
from composable.functional import apply_alternating_flip, draw_alternating_flip

__all__ = ["AlternatingFlip"]


@attrs.frozen(repr=False)
class AlternatingFlip(Algorithm):
    """Flip images in every other epoch: see `composable.functional.alternating_flip`.

    Batches must have the indices of their examples: see `composable.data.Indexed`. Dense targets of
    the same height and width are flipped with their images.

    Args:
        index_key: The place of the indices in the batch, an index or a name. By default that of
            `Indexed`.
    """

    index_key: int | str | None = attrs.field(default=None, validator=check_index_key)

    events = frozenset({Event.AFTER_DATALOADER})
    stage = Stage.AUGMENT
    reads = frozenset({"batch", "key", "timestamp"})
    writes = frozenset({"batch"})

    def apply(self, event: Event, state: State) -> State:
        """Flip some images of the batch."""
        images, targets = state.inputs, state.targets
        check_tensor("inputs", images)
        draw = draw_alternating_flip(**draw_of_examples(state, self.name, self.index_key))
        parts = {"inputs": apply_alternating_flip(images, draw)}
        if isinstance(targets, Tensor) and is_dense(targets, images.shape[2:]):
            parts["targets"] = apply_alternating_flip(targets, draw)
        return state.with_batch(**parts)
