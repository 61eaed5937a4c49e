"""`check_algorithm` explains a draw from a global generator, wherever it is drawn."""

import random

import attrs
import pytest
import torch

from composable import Algorithm, Event
from composable.testing import LawViolation, check_algorithm


@attrs.frozen(repr=False)
class Draws(Algorithm):
    """Stores a number from a global generator."""

    event: Event
    library: str

    reads = writes = frozenset({"memory"})

    @property
    def events(self):
        return frozenset({self.event})

    def apply(self, event, state):
        return state.remember(self.name, draw(self.library))


def draw(library):
    return random.random() if library == "random" else torch.rand(()).item()


@pytest.mark.parametrize("library", ["random", "torch"])
@pytest.mark.parametrize("event", [Event.FIT_START, Event.EPOCH_START, Event.BATCH_END])
def test_names_the_generator_and_the_event(event, library):
    with pytest.raises(LawViolation, match=f"global generator at {event.name}") as caught:
        check_algorithm(Draws(event, library))

    assert caught.value.law == "leaves_generators"
