"""Law: an external loop fires the events of the Trainer, in its order and at its states."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composable import Event
from composable.core.algorithm import FunctionAlgorithm
from tests.integrations.loops import FULL, LOOPS, Run, dense_net
from tests.integrations.test_accumulation_of_adapters import PER_BATCH, by_trainer

KEEPS = "Lightning, mixin"
"""Lightning clears gradients in the next step, right before its backward pass."""


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


def recorded(train, drawn, *, gradients):
    """Return the events of a training, with what an algorithm sees at each."""
    seen = []

    def note(event, state):
        if drawn["accumulate_batches"] > 1 and event in PER_BATCH:
            return state  # of a step, the Trainer prepares all batches first
        seen.append(
            (
                event.name,
                state.timestamp.batch,
                state.timestamp.epoch,
                state.batch is None,
                state.loss is not None and state.loss.requires_grad,
                len(state.current_gradients()) if gradients else None,
            )
        )
        return state

    adapter = train(Run([FunctionAlgorithm(note)], **drawn))
    if seen[-1][0] != Event.FIT_END.name:  # a loop written by hand says itself when it ends
        adapter.finish()
    return seen


@pytest.mark.parametrize("loop", FULL)
@given(runs())
@settings(max_examples=8)
def test_a_loop_fires_the_events_of_the_trainer_in_its_order(loop, drawn):
    """Law of events: An external loop fires the events of the `Trainer`, in its order and at its
    states: one written by hand, with Fabric or Accelerate, or a trainer of Lightning or Hugging
    Face with the mixin. With several batches to a step, the `Trainer` prepares all of them first.
    Lightning clears gradients in the next step.
    """
    count = drawn["accumulate_batches"]
    options = {"gradients": loop != KEEPS}

    there = recorded(
        lambda run: by_trainer(run, run.loader(), accumulate_batches=count), drawn, **options
    )

    assert recorded(LOOPS[loop], drawn, **options) == there
