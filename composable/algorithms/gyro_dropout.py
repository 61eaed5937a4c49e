"""Gyro dropout, as an algorithm."""

import attrs

from composable.algorithms._validators import integer, number
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.core.time import TimeUnit
from composable.functional import gyro_dropout

__all__ = ["GyroDropout"]


@attrs.frozen(repr=False)
class GyroDropout(Algorithm):
    """Reuse a few masks of dropout: see `composable.functional.gyro_dropout`.

    The masks are spread over the batches of the run, so `max_duration` must be given: in batches,
    or in epochs where the loader knows its length. Microbatches count one by one.

    Args:
        p: How likely an entry of a mask is 0.
        sigma: How many masks there are.
        tau: How many are in use at a time.
    """

    p: float = attrs.field(default=0.5, validator=number(0, 1, ends="[)"))
    sigma: int = attrs.field(default=256, validator=integer(1))
    tau: int = attrs.field(default=16, validator=integer(1))

    def __attrs_post_init__(self) -> None:
        if self.tau > self.sigma:
            raise ValueError(f"tau={self.tau} must be at most sigma={self.sigma}.")

    events = frozenset({Event.INIT})
    stage = Stage.SURGERY
    reads = frozenset({"model", "key", "max_duration", "epoch_length"})
    writes = frozenset({"model"})
    replaces = frozenset({"dropout"})

    def apply(self, event: Event, state: State) -> State:
        """Replace the layers once, before training."""
        whole = state.max_duration
        if whole is None or whole.unit not in (TimeUnit.EPOCH, TimeUnit.BATCH):
            raise ValueError(
                f"max_duration={str(whole)!r} doesn't say over how many batches {self.name} is to "
                "spread its masks: give max_duration in epochs or batches, such as '10ep'."
            )
        batches = 1 if whole.unit is TimeUnit.BATCH else state.epoch_length
        if batches is None:
            raise ValueError(
                f"max_duration={str(whole)!r} is in epochs, and the loader doesn't know its "
                f"length, over which {self.name} is to spread its masks: give max_duration in "
                "batches, such as '1000ba'."
            )
        model = gyro_dropout(
            state.model,
            p=self.p,
            sigma=self.sigma,
            tau=self.tau,
            iters_per_epoch=batches,
            max_epoch=int(whole.value),
            generator=state.key.fold(self.name).generator(),
        )
        return state.evolve(model=model)
