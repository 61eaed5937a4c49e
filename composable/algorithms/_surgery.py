"""What the algorithms that change the model once share."""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import attrs
from torch import nn

from composable._support.checks import check_fields, with_fields
from composable.core.algorithm import Algorithm, Stage
from composable.core.event import Event
from composable.core.state import State


@attrs.frozen(repr=False)
class Surgery(Algorithm):
    """Change the model before training; a subclass has the `surgery`, and its options as fields."""

    surgery: ClassVar[Callable[..., nn.Module]]
    """A function of the model, with arguments by the names of the fields; it may take a generator,
    which is then seeded by the key of the state."""
    events = frozenset({Event.INIT})
    stage = Stage.SURGERY
    reads: ClassVar[Any] = frozenset({"model"})
    writes = frozenset({"model"})

    def __attrs_post_init__(self) -> None:
        check_fields(self, type(self).surgery)

    def apply(self, event: Event, state: State) -> State:
        """Change the model once, before training."""
        model = type(self).surgery(state.model, **self.options(state))
        return state if model is state.model else state.evolve(model=model)

    def options(self, state: State) -> dict[str, Any]:
        """Return the arguments of the surgery by name."""
        surgery = type(self).surgery
        options = with_fields(self, surgery).keywords
        if "generator" in inspect.signature(surgery).parameters:
            options["generator"] = state.key.fold(self.name).generator()
        return options
