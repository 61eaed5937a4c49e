"""Gyro dropout, as an algorithm."""

from typing import Any

import attrs

from composable.algorithms._surgery import Surgery
from composable.core.state import State
from composable.core.time import TimeUnit
from composable.functional import gyro_dropout
from composable.functional.gyro_dropout import check_masks


@attrs.frozen(repr=False)
class GyroDropout(Surgery):
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

    surgery = staticmethod(gyro_dropout)
    reads = frozenset({"model", "key", "max_duration", "epoch_length"})
    replaces = frozenset({"dropout"})

    def options(self, state: State) -> dict[str, Any]:
        """Return the arguments of the surgery by name, the length of the run among them."""
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
        length = {"iters_per_epoch": batches, "max_epoch": int(whole.value)}
        return super().options(state) | length
