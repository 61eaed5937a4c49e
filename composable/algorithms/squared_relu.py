"""Squared ReLU, as an algorithm."""

from typing import Any

import attrs
from torch import nn

from composable._support.registry import check_class
from composable.algorithms._validators import in_range
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import squared_relu

__all__ = ["SquaredReLUs"]


@attrs.frozen(repr=False)
class SquaredReLUs(Algorithm):
    """Square the rectified activations of feed-forward blocks: see `functional.squared_relu`.

    Args:
        slope: Slope of negative inputs before the square, in [0, 1].
        target: A class of activations to replace. None for those of known feed-forward blocks.
    """

    slope: float = attrs.field(default=0.0, validator=in_range(0, 1))
    target: type[nn.Module] | None = attrs.field(default=None)

    @target.validator
    def _check_target(self, _: Any, value: Any) -> None:
        if value is not None:
            check_class("target", value)

    events = frozenset({Event.INIT})
    stage = Stage.SURGERY
    after = frozenset({"GatedLinearUnits"})
    reads = frozenset({"model"})
    writes = frozenset({"model"})
    replaces = frozenset({"activation"})

    def apply(self, event: Event, state: State) -> State:
        """Replace the activations once, before training."""
        model = squared_relu(state.model, slope=self.slope, target=self.target)
        return state if model is state.model else state.evolve(model=model)
