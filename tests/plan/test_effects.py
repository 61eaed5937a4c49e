"""What algorithms do is compared with what they declare."""

import attrs
import pytest
import torch

from composable import Algorithm, EffectError, Event, chain, during
from tests.support.runs import trained


@attrs.frozen(repr=False)
class Acts(Algorithm):
    """Does something at the start of a batch, and declares that it writes the batch and memory."""

    action: object = attrs.field(kw_only=True)

    events = frozenset({Event.BATCH_START})
    writes = frozenset({"batch", "memory"})

    def apply(self, event, state):
        return self.action(state)


def in_place(state):
    state.inputs.mul_(2)
    return state


def eval_mode(state):
    state.model.eval()
    return state


def rate(state):
    state.optimizers[0].param_groups[0]["lr"] = 0.5
    return state


def loss(state):
    return state.evolve(loss=torch.zeros(()))


def other_memory(state):
    return state.remember("MixUp", 1)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (in_place, r"Acts changed state.batch\[0\] in place at BATCH_START: compute a new value"),
        (eval_mode, r"Acts changed state.model.training from True to False at BATCH_START"),
        (rate, r"Acts changed state.optimizers\[0\].param_groups\[0\]\['lr'\] from 0.1 to 0.5"),
        (loss, r"Acts wrote state.loss at BATCH_START.*writes \['batch', 'memory'\]: add 'loss'"),
        (other_memory, r"Acts wrote state.memory\['MixUp'\] at BATCH_START.*under its own name"),
    ],
)
def test_what_is_not_declared_or_done_in_place_is_refused(action, message):
    with pytest.raises(EffectError, match=message):
        trained(algorithms=Acts(action=action), check_effects=True)


def doubles(event, state):
    return in_place(state) if event is Event.BATCH_START else state


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        *(
            (during("0dur", "1dur", chain(Acts(action=a))), r"1dur', chain\(Acts\)\) wrote state")
            for a in (loss, other_memory)
        ),
        (doubles, "doubles changed"),  # a function declares nothing
    ],
)
def test_combinations_and_functions_are_checked_too(algorithm, message):
    with pytest.raises(EffectError, match=message):
        trained(algorithms=algorithm, check_effects=True)


def test_accepts_new_values_of_a_function_and_anything_without_the_check():
    trained(algorithms=lambda event, state: state.evolve(metrics={}), check_effects=True)
    trained(algorithms=Acts(action=in_place), check_effects=False)
