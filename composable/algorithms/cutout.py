"""CutOut, as an algorithm."""

from typing import Any

import attrs

from composable.algorithms._validators import flag, integer, number
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import cutout

__all__ = ["CutOut"]


@attrs.frozen(repr=False)
class CutOut(Algorithm):
    """Blank square holes of the inputs: see `composable.functional.cutout`.

    Args:
        num_holes: How many holes, 0 or more.
        length: The side of a hole: below 1 a share of the shorter side, from 1 on pixels.
        uniform_sampling: Make every pixel equally likely to be in a hole.
        per_sample: Draw holes for each example instead of once for the batch.
    """

    num_holes: int = attrs.field(default=1, validator=integer(0))
    length: float = attrs.field(default=0.5, validator=number(0, ends="[)"))
    uniform_sampling: bool = attrs.field(default=False, validator=flag)
    per_sample: bool = attrs.field(default=True, validator=flag)

    events = frozenset({Event.AFTER_DATALOADER})
    stage = Stage.AUGMENT
    reads = frozenset({"batch", "key", "timestamp"})
    writes = frozenset({"batch"})

    @length.validator
    def _check_length(self, attribute: Any, value: float) -> None:
        if value > 1 and value != int(value):
            raise ValueError(f"length={value!r} must be below 1, or a whole number of pixels.")

    def apply(self, event: Event, state: State) -> State:
        """Cut the holes of this batch."""
        return state.with_batch(
            inputs=cutout(
                state.inputs,
                num_holes=self.num_holes,
                length=self.length,
                uniform_sampling=self.uniform_sampling,
                per_sample=self.per_sample,
                generator=state.generator(self.name),
            )
        )
