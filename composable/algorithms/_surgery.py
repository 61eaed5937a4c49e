"""What the algorithms that change the model once share."""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import attrs
from torch import nn

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

    def apply(self, event: Event, state: State) -> State:
        """Change the model once, before training."""
        surgery = type(self).surgery
        names = inspect.signature(surgery).parameters.keys()
        options = {name: getattr(self, name) for name in names if hasattr(self, name)}
        if "generator" in names:
            options["generator"] = state.key.fold(self.name).generator()
        model = surgery(state.model, **options)
        return state if model is state.model else state.evolve(model=model)
