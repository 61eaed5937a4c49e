"""Law: an external loop fires the events of the Trainer, in its order and at its states."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from composable import Event, during
from composable.algorithms import GradientClipping, MixUp
from composable.core.algorithm import FunctionAlgorithm
from tests.integrations.loops import FULL, LOOPS, PER_BATCH, Run
from tests.integrations.table import dense_net

KEEPS = "Lightning, mixin"
"""Lightning clears gradients in the next step, right before its backward pass."""
AROUND = {
    "alone": lambda note: [FunctionAlgorithm(note)],
    "after others": lambda note: [note, MixUp(), GradientClipping("norm", 0.5)],
    "in a window": lambda note: during("0.4dur", "0.8dur", note),
}


@st.composite
def runs(draw):
    """Draw a training, whose last batches and steps may be short."""
    return {
        "net": dense_net,
        "examples": draw(st.integers(1, 12)),
        "batch_size": draw(st.integers(1, 4)),
        "accumulate_batches": draw(st.integers(1, 3)),
        "epochs": draw(st.integers(1, 2)),
    }


def recorded(train, around, drawn, *, gradients):
    """Return the events of a training with what an algorithm sees, and the values among it."""
    seen, values = [], []

    def note(event, state):
        several = drawn["accumulate_batches"] > 1
        if several and event in PER_BATCH:
            return state
        held = state.current_gradients() if gradients else {}
        at = event.name, state.timestamp.batch, state.timestamp.epoch
        targets = state.batch and (several or type(state.targets).__name__)
        loss = state.loss is not None and state.loss.requires_grad
        names = sorted(name.removeprefix("model.net.") for name in held)
        seen.append((*at, targets, loss, state.gradients is None, names))
        if event in (Event.AFTER_TRAIN_BATCH, Event.BATCH_END):
            values.append(state.loss.detach())
        if event is Event.BEFORE_OPTIMIZER_STEP:
            values.extend(one.clone() for one in held.values())
        return state

    adapter = train(Run(AROUND[around](note), **drawn))
    if hasattr(adapter, "finish") and adapter.state.timestamp.iteration == 0:
        adapter.finish()  # a loop written by hand says itself when it ends
    return seen, values


@pytest.mark.parametrize("loop", FULL)
@given(st.sampled_from(sorted(AROUND)), runs())
@settings(max_examples=8)
def test_a_loop_fires_the_events_of_the_trainer_in_its_order(loop, around, drawn):
    """Law of events: An external loop fires the events of the `Trainer`, in its order and at its
    states: one written by hand, with Fabric or Accelerate, or a trainer of Lightning or Hugging
    Face with the mixin. With several batches to a step, the `Trainer` prepares all of them first.
    Lightning clears gradients in the next step.
    """
    options = {"gradients": loop != KEEPS}

    there, expected = recorded(Run.by_trainer, around, drawn, **options)
    here, values = recorded(LOOPS[loop], around, drawn, **options)

    assert here == there
    torch.testing.assert_close(values, expected)
