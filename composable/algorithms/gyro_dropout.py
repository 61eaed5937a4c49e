"""Gyro dropout, as an algorithm."""

import attrs

from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.core.time import TimeUnit
from composable.functional import gyro_dropout
from composable.functional.gyro_dropout import check_masks

__all__ = ["GyroDropout"]


@attrs.frozen(repr=False)
class GyroDropout(Algorithm):
    """Use dropout with a fixed pool of masks: see `composable.functional.gyro_dropout`.

    The masks are spread over the batches of the run, so `max_duration` must be given: in batches,
    or in epochs if the loader has a length. Each microbatch counts as one step.

    Args:
        p: Probability that an entry of a mask is 0, in [0, 1).
        sigma: Number of masks.
        tau: Number of masks in use at a time, at most `sigma`.
    """

    p: float = 0.5
    sigma: int = 256
    tau: int = 16

    def __attrs_post_init__(self) -> None:
        check_masks(self.p, self.sigma, self.tau)

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
                f"max_duration={str(whole)!r} must be in epochs or batches, over which {self.name} "
                "spreads its masks; pass max_duration='10ep' or the like."
            )
        batches = 1 if whole.unit is TimeUnit.BATCH else state.epoch_length
        if batches is None:
            raise ValueError(
                f"max_duration={str(whole)!r} must be in batches, over which {self.name} spreads "
                "its masks, because the loader has no length; pass max_duration='1000ba' or the "
                "like."
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
