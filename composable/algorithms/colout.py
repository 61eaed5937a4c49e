"""ColOut, as an algorithm."""

import attrs
from torch import Tensor

from composable.algorithms._validators import number
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import colout

__all__ = ["ColOut"]


@attrs.frozen(repr=False)
class ColOut(Algorithm):
    """Leave out some rows and columns of the inputs: see `composable.functional.colout`.

    Targets that have a value for each pixel lose the same ones.

    Args:
        p_row: The share of the rows to leave out, in [0, 1).
        p_col: The share of the columns to leave out, in [0, 1).
    """

    p_row: float = attrs.field(default=0.15, validator=number(0, 1, ends="[)"))
    p_col: float = attrs.field(default=0.15, validator=number(0, 1, ends="[)"))

    events = frozenset({Event.AFTER_DATALOADER})
    stage = Stage.AUGMENT
    reads = frozenset({"batch", "key", "timestamp"})
    writes = frozenset({"batch"})

    def apply(self, event: Event, state: State) -> State:
        """Make this batch smaller."""
        targets = state.targets
        small = colout(
            state.inputs,
            targets if isinstance(targets, Tensor) else None,
            p_row=self.p_row,
            p_col=self.p_col,
            generator=state.generator(self.name),
        )
        if small.targets is None:
            return state.with_batch(inputs=small.inputs)
        return state.with_batch(inputs=small.inputs, targets=small.targets)
