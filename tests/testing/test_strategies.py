"""The strategies give what they say, and the same again."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from composable import Event
from composable.testing import batches, events, models, seeds
from tests.support.commands import Command, run_script


@given(
    batches(shape=(2, 5), classes=3, min_size=0, max_size=4, dtype=torch.float64),
    events(),
    seeds(),
)
def test_batches_events_and_seeds_are_in_their_ranges(batch, event, seed):
    inputs, targets = batch
    assert inputs.shape[1:] == (2, 5)
    assert inputs.dtype == torch.float64
    assert len(inputs) == len(targets) <= 4
    assert ((targets >= 0) & (targets < 3)).all()

    assert event in Event
    assert 0 <= seed < 2**64


@given(models(classes=4), batches())
@settings(max_examples=10)
def test_models_take_the_batches(model, batch):
    assert model.eval()(batch[0]).shape == (len(batch[0]), 4)
    with pytest.raises(ValueError, match=r"shape=\(4,\) must be \(channels, height, width\)"):
        models(shape=(4,))


def test_the_same_examples_are_drawn_again_without_a_global_generator():
    def drawn():
        seen, before = [], torch.get_rng_state()

        @given(batches(), models(), st.data())
        @settings(max_examples=5, derandomize=True, database=None)
        def collect(batch, model, data):
            seen.append((*batch, *model.state_dict().values()))

        collect()
        assert torch.equal(torch.get_rng_state(), before)
        return seen

    for ours, theirs in zip(drawn(), drawn(), strict=True):
        assert all(map(torch.equal, ours, theirs))


def test_without_hypothesis_only_the_checks_are_available():
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from composable.algorithms import LabelSmoothing\n"
        "from composable.testing import check_algorithm, check_function\n"
        "check_algorithm(LabelSmoothing(), max_duration='1ba')\n"
        "print('checked')\n"
        "from composable.testing import batches\n"
    )

    output, error = run_script(code, status=1)

    assert output == "checked\n"
    assert 'pip install "composable[testing]"' in error


def test_registered_torch_draws_the_same_in_every_example_and_is_restored(tmp_path):
    script = (
        "import torch\n"
        "from hypothesis import given, settings, strategies as st\n"
        "from composable.testing import register_torch\n"
        "register_torch()\n"
        "seen = set()\n"
        "before = torch.get_rng_state()\n"
        "@given(st.integers())\n"
        "@settings(max_examples=5, database=None, deadline=None)\n"
        "def draw(number):\n"
        "    seen.add(float(torch.rand(())))\n"
        "draw()\n"
        "assert len(seen) == 1\n"
        "assert torch.equal(torch.get_rng_state(), before)\n"
    )

    status, _, said = Command(tmp_path, script).finish()

    assert status == 0, said
