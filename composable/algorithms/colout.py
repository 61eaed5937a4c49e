"""ColOut, as an algorithm."""

import attrs
from torch import Tensor

from composable._support.checks import with_fields
from composable.algorithms._dense_targets import with_resized
from composable.algorithms._normalization import Augmentation
from composable.algorithms._validators import boolean, in_range
from composable.core.event import Event
from composable.core.state import State
from composable.functional import colout


@attrs.frozen(repr=False)
class ColOut(Augmentation):
    """Drop random rows and columns of the inputs: see `composable.functional.colout`.

    Dense targets, with one value per pixel, lose the same rows and columns.

    Args:
        p_row: Share of the rows to drop, in [0, 1).
        p_col: Share of the columns to drop, in [0, 1).
        per_sample: Draw the rows and columns of each example rather than once for the batch.
    """

    p_row: float = attrs.field(default=0.15, validator=in_range(0, 1, ends="[)"))
    p_col: float = attrs.field(default=0.15, validator=in_range(0, 1, ends="[)"))
    per_sample: bool = attrs.field(default=False, validator=boolean)

    def apply(self, event: Event, state: State) -> State:
        """Drop rows and columns of the batch."""
        targets = state.targets
        dense = targets if isinstance(targets, Tensor) else None
        drop = with_fields(self, colout)
        small = drop(state.inputs, dense, generator=state.generator(self.name))
        return with_resized(state, small)
