"""Whitening by the first layer, as an algorithm."""

from collections.abc import Callable
from typing import Any

import attrs
from torch import Tensor

from composable._support.checks import kind_of
from composable.algorithms._surgery import Surgery
from composable.core.state import State
from composable.functional import whiten_first_layer


def _check_sample(_: Any, attribute: Any, value: Any) -> None:
    if not callable(value) or isinstance(value, (type, Tensor)):
        raise TypeError(
            f"{attribute.name} must be a function without arguments that returns images, such as "
            f"lambda: images[:5000], not {kind_of(value)}."
        )


@attrs.frozen(repr=False)
class WhitenedFirstLayer(Surgery):
    """Freeze the first convolution as a whitening: see `composable.functional.whiten_first_layer`.

    Args:
        sample: A function without arguments that returns images of the training set, normalized
            as in training. It is called once, before training.
        eps: The term added to the eigenvalues, above 0.
    """

    sample: Callable[[], Tensor] = attrs.field(validator=_check_sample)
    eps: float = 5e-4

    surgery = staticmethod(whiten_first_layer)
    reads = frozenset({"model", "device"})
    replaces = frozenset({"convolution"})
    before = frozenset({"BlurPool", "Factorize", "SqueezeExcite", "WeightStandardization"})

    def options(self, state: State) -> dict[str, Any]:
        """Return the arguments of the surgery by name, the images among them."""
        inputs = self.sample()
        if isinstance(inputs, Tensor):
            inputs = inputs.to(state.device)
        return super().options(state) | {"inputs": inputs}
