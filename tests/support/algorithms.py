"""Algorithms for tests."""

import attrs
import torch

from composable import Algorithm, Event, Stage, State
from composable.algorithms import (
    EMA,
    BlurPool,
    GradientClipping,
    LabelSmoothing,
    MixUp,
    SelectiveBackprop,
)
from tests.support.models import WORDS


@attrs.frozen(repr=False)
class Jitter(Algorithm):
    """Scales each batch by a number that it draws."""

    events = frozenset({Event.AFTER_DATALOADER})
    stage = Stage.AUGMENT
    reads = frozenset({"batch", "key", "timestamp"})
    writes = frozenset({"batch"})

    def apply(self, event: Event, state: State) -> State:
        factor = 1 + 0.1 * torch.rand((), generator=state.generator(self.name))
        return state.with_batch(inputs=state.inputs * factor)


@attrs.frozen(repr=False)
class WordNoise(Algorithm):
    """Puts other words in the place of some of each batch."""

    events = frozenset({Event.AFTER_DATALOADER})
    stage = Stage.AUGMENT
    reads = frozenset({"batch", "key", "timestamp"})
    writes = frozenset({"batch"})

    def apply(self, event: Event, state: State) -> State:
        generator = state.generator(self.name)
        others = torch.randint(WORDS, state.inputs.shape, generator=generator)
        hit = torch.rand(state.inputs.shape, generator=generator) < 0.3
        chosen = others[hit].to(state.inputs.device)
        return state.with_batch(
            inputs=state.inputs.masked_scatter(hit.to(state.inputs.device), chosen)
        )


@attrs.frozen(repr=False)
class GradientNoise(Algorithm):
    """Adds noise to the gradients, in the stage in which they are clipped too."""

    events = frozenset({Event.BEFORE_OPTIMIZER_STEP})
    stage = Stage.GRADIENTS
    reads = frozenset({"gradients", "model", "optimizers", "key", "timestamp"})
    writes = frozenset({"gradients"})

    def apply(self, event: Event, state: State) -> State:
        generator = state.generator(self.name)
        noise = {
            name: 0.01 * torch.randn(grad.shape, generator=generator).to(grad.device)
            for name, grad in state.current_gradients().items()
        }
        noisy = {name: grad + noise[name] for name, grad in state.current_gradients().items()}
        return state.evolve(gradients=noisy)


@attrs.frozen(repr=False)
class Draws(Algorithm):
    """Changes nothing, and remembers what it drew at each batch."""

    events = frozenset({Event.BATCH_START})
    reads = frozenset({"key", "timestamp", "memory"})
    writes = frozenset({"memory"})

    def apply(self, event: Event, state: State) -> State:
        number = torch.rand((), generator=state.generator(self.name)).item()
        return state.remember(self.name, [*state.memory.get(self.name, []), number])


def six_algorithms() -> list[Algorithm]:
    """Every algorithm of the library, with hyperparameters that make it act in a short run."""
    return [
        MixUp(alpha=0.4),
        LabelSmoothing(0.1),
        BlurPool(min_channels=0),
        EMA(half_life="2ba"),
        SelectiveBackprop(start=0.0, end=1.0, keep=0.5, interrupt=2),
        GradientClipping("norm", 0.5),
    ]
