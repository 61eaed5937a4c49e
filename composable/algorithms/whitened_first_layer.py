"""Whitening by the first layer, as an algorithm."""

from collections.abc import Callable
from math import inf
from typing import Any

import attrs
from torch import Tensor

from composable.algorithms._validators import in_range
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State
from composable.functional import whiten_first_layer

__all__ = ["WhitenedFirstLayer"]


def _check_sample(_: Any, attribute: Any, value: Any) -> None:
    if not callable(value) or isinstance(value, (type, Tensor)):
        raise TypeError(
            f"{attribute.name}={value!r} must be a function without arguments that returns images, "
            "such as lambda: images[:5000]."
        )


@attrs.frozen(repr=False)
class WhitenedFirstLayer(Algorithm):
    """Freeze the first convolution as a whitening: see `composable.functional.whiten_first_layer`.

    Args:
        sample: A function without arguments that returns images of the training set, normalized
            as in training. It is called once, before training.
        eps: The term added to the eigenvalues, above 0.
    """

    sample: Callable[[], Tensor] = attrs.field(validator=_check_sample)
    eps: float = attrs.field(default=5e-4, validator=in_range(0, inf, ends="()"))

    events = frozenset({Event.INIT})
    stage = Stage.SURGERY
    reads = frozenset({"model", "device"})
    writes = frozenset({"model"})
    replaces = frozenset({"convolution"})
    before = frozenset({"BlurPool", "Factorize", "SqueezeExcite", "WeightStandardization"})

    def apply(self, event: Event, state: State) -> State:
        """Write the filters once, before training."""
        inputs = self.sample()
        if isinstance(inputs, Tensor):
            inputs = inputs.to(state.device)
        return state.evolve(model=whiten_first_layer(state.model, inputs, eps=self.eps))
