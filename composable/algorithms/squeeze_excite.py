"""Squeeze-and-excitation, as an algorithm."""

import attrs

from composable.algorithms._validators import integer_at_least, passes
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import squeeze_excite
from composable.functional.squeeze_excite import check_latent_channels

__all__ = ["SqueezeExcite"]


@attrs.frozen(repr=False)
class SqueezeExcite(Algorithm):
    """Add squeeze-and-excitation blocks: see `composable.functional.squeeze_excite`.

    Args:
        latent_channels: Channels between the two layers of the gate: an integer, or a share of
            the output channels of the convolution.
        min_channels: Minimum number of input and output channels of a convolution to extend.
    """

    latent_channels: int | float = attrs.field(default=64, validator=passes(check_latent_channels))
    min_channels: int = attrs.field(default=128, validator=integer_at_least(0))

    events = frozenset({Event.INIT})
    stage = Stage.SURGERY
    reads = frozenset({"model", "key"})
    writes = frozenset({"model"})
    replaces = frozenset({"convolution"})
    after = frozenset({"BlurPool"})  # the result is the same in either order

    def apply(self, event: Event, state: State) -> State:
        """Extend the convolutions once, before training."""
        model = squeeze_excite(
            state.model,
            latent_channels=self.latent_channels,
            min_channels=self.min_channels,
            generator=state.key.fold(self.name).generator(),
        )
        return state.evolve(model=model)
