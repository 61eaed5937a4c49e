"""BlurPool, as an algorithm."""

import attrs

from composable.algorithms._validators import flag, integer
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import blurpool

__all__ = ["BlurPool"]


@attrs.frozen(repr=False)
class BlurPool(Algorithm):
    """Blur before strided layers drop pixels: see `composable.functional.blurpool`.

    Args:
        replace_convs: Replace strided convolutions.
        replace_maxpools: Replace strided max-pools.
        blur_first: Blur before the convolution, which is cheap, instead of after it.
        min_channels: Leave convolutions with fewer input channels as they are.
    """

    replace_convs: bool = attrs.field(default=True, validator=flag)
    replace_maxpools: bool = attrs.field(default=True, validator=flag)
    blur_first: bool = attrs.field(default=True, validator=flag)
    min_channels: int = attrs.field(default=16, validator=integer(0))

    def __attrs_post_init__(self) -> None:
        if not (self.replace_convs or self.replace_maxpools):
            raise ValueError(
                "replace_convs=False and replace_maxpools=False leave nothing to replace: set one "
                "of them to True, or leave BlurPool out."
            )

    events = frozenset({Event.INIT})
    stage = Stage.SURGERY
    reads = frozenset({"model"})
    writes = frozenset({"model"})
    replaces = frozenset({"convolution", "max-pool"})

    def apply(self, event: Event, state: State) -> State:
        """Replace the layers once, before training."""
        model = blurpool(
            state.model,
            replace_convs=self.replace_convs,
            replace_maxpools=self.replace_maxpools,
            blur_first=self.blur_first,
            min_channels=self.min_channels,
        )
        return state.evolve(model=model)
