"""Squeeze-and-excitation, as an algorithm."""

import attrs

from composable.algorithms._validators import integer, number
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import squeeze_excite

__all__ = ["SqueezeExcite"]


@attrs.frozen(repr=False)
class SqueezeExcite(Algorithm):
    """Let channel attention follow convolutions: see `composable.functional.squeeze_excite`.

    Args:
        latent_channels: Its inner size: a whole number, or a fraction of the output channels.
        min_channels: Leave convolutions with fewer input or output channels as they are.
    """

    latent_channels: int | float = attrs.field(default=64, validator=number(0, ends="(]"))
    min_channels: int = attrs.field(default=128, validator=integer(0))

    def __attrs_post_init__(self) -> None:
        if self.latent_channels >= 1 and self.latent_channels % 1:
            raise ValueError(
                f"latent_channels={self.latent_channels!r} must be a whole number, or a fraction "
                "of the channels below 1."
            )

    events = frozenset({Event.INIT})
    stage = Stage.SURGERY
    reads = frozenset({"model", "key"})
    writes = frozenset({"model"})
    replaces = frozenset({"convolution"})

    def apply(self, event: Event, state: State) -> State:
        """Replace the layers once, before training."""
        model = squeeze_excite(
            state.model,
            latent_channels=self.latent_channels,
            min_channels=self.min_channels,
            generator=state.key.fold(self.name).generator(),
        )
        return state.evolve(model=model)
