"""Factorization, as an algorithm."""

from typing import Any

import attrs

from composable.algorithms._validators import flag, integer, number
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import factorize

__all__ = ["Factorize"]


def _latent(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    allowed = integer(1) if isinstance(value, int) else number(0, 1, ends="()")
    allowed(instance, attribute, value)


@attrs.frozen(repr=False)
class Factorize(Algorithm):
    """Replace wide layers by pairs of thin ones: see `composable.functional.factorize`.

    It comes before the other algorithms that replace convolutions, so that these find the pairs.

    Args:
        factorize_convs: Replace convolutions.
        factorize_linears: Replace linear layers.
        min_channels: Leave convolutions with fewer input or output channels as they are.
        latent_channels: Channels between a pair of convolutions: a whole number, or a share of
            the input or output channels, whichever are fewer.
        min_features: Leave linear layers with fewer input or output features as they are.
        latent_features: Features between a pair of linear layers, likewise.
    """

    factorize_convs: bool = attrs.field(default=True, validator=flag)
    factorize_linears: bool = attrs.field(default=True, validator=flag)
    min_channels: int = attrs.field(default=512, validator=integer(0))
    latent_channels: int | float = attrs.field(default=0.25, validator=_latent)
    min_features: int = attrs.field(default=512, validator=integer(0))
    latent_features: int | float = attrs.field(default=0.25, validator=_latent)

    def __attrs_post_init__(self) -> None:
        if not (self.factorize_convs or self.factorize_linears):
            raise ValueError(
                "factorize_convs=False and factorize_linears=False leave nothing to replace: let "
                "one of them be True."
            )

    events = frozenset({Event.INIT})
    stage = Stage.SURGERY
    reads = frozenset({"model"})
    writes = frozenset({"model"})
    before = frozenset({"BlurPool", "SqueezeExcite", "WeightStandardization"})
    replaces = frozenset({"convolution", "linear layer"})

    def apply(self, event: Event, state: State) -> State:
        """Replace the layers once, before training."""
        model = factorize(
            state.model,
            factorize_convs=self.factorize_convs,
            factorize_linears=self.factorize_linears,
            min_channels=self.min_channels,
            latent_channels=self.latent_channels,
            min_features=self.min_features,
            latent_features=self.latent_features,
        )
        return state.evolve(model=model)
