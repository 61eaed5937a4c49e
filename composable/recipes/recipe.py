"""A recipe: algorithms, an optimizer and a schedule."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
from torch import Tensor

from composable.core.algorithm import Algorithm


def _as_tuple(algorithms: Any) -> tuple[Algorithm, ...]:
    other = isinstance(algorithms, (str, bytes, Mapping, Tensor))
    if other or not isinstance(algorithms, Iterable):
        raise TypeError(f"algorithms={algorithms!r} must be a list of algorithms, such as [EMA()].")
    return tuple(algorithms)


@attrs.frozen
class Recipe:
    """Algorithms, an optimizer and a schedule of the learning rate that belong together.

    Args:
        algorithms: The algorithms, in any order.
        optimizers: A function that takes the parameters and returns an optimizer, as for the
            Trainer. Default: the recipe has none.
        schedulers: Schedules of the learning rate, as for the Trainer. Default: the recipe has
            none.

    Raises:
        TypeError: `algorithms` is not a list of algorithms.

    Example:
        >>> from functools import partial
        >>> from composable import Trainer
        >>> from composable.algorithms import EMA
        >>> from composable.optim import linear
        >>> from composable.recipes import Recipe
        >>> recipe = Recipe([EMA(half_life="20ba")], partial(torch.optim.AdamW, lr=1e-3), linear())
        >>> trainer = Trainer(torch.nn.Linear(2, 1), **recipe.arguments(), progress_bar=False)
    """

    algorithms: tuple[Algorithm, ...] = attrs.field(default=(), converter=_as_tuple)
    optimizers: Callable[[Iterable[Any]], Any] | None = None
    schedulers: Any = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for the Trainer, without those that the recipe does not set."""
        given = {"optimizers": self.optimizers, "schedulers": self.schedulers}
        return {
            "algorithms": list(self.algorithms),
            **{name: value for name, value in given.items() if value is not None},
        }
