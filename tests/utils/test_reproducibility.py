"""Seeding, and the state of the global generators."""

import contextlib
import os
import random

import numpy
import pytest
import torch

from composable import Key
from composable.utils.reproducibility import (
    get_random_seed,
    get_rng_state,
    load_rng_state,
    preserve_rng,
    seed_all,
    seed_context,
    seed_epoch,
    seed_fetch,
    seed_step,
)
from tests.support.commands import Command
from tests.support.runs import make_trainer


def draw():
    """Draw the next numbers of every global generator."""
    return random.random(), numpy.random.rand(), torch.rand(()).item()  # noqa: NPY002


def test_a_seed_seeds_every_generator_as_usual():
    random.seed(17), numpy.random.seed(17), torch.manual_seed(17)  # noqa: NPY002
    first = draw()
    seed_all(17)
    get_rng_state()  # it draws nothing

    assert draw() == first
    for seed in (0, 18, 2**32, 2**64 - 1):
        seed_all(seed)
        assert all(a != b for a, b in zip(draw(), first, strict=True))


@pytest.mark.parametrize("step", [0, 31, 32, 33, 2**40])
def test_the_seed_of_a_step_is_folded_whether_or_not_others_are_computed_with_it(step):
    key = Key(17).fold("step", step)
    seed_step(17, step)

    assert torch.initial_seed() == key.seed
    seed_step(17, step, 3)
    assert torch.initial_seed() == key.fold(3).seed


@pytest.mark.parametrize(("call", "value"), [(seed_all, 2**64), (load_rng_state, {"python": 1})])
def test_a_refused_value_changes_no_generator(call, value):
    before = get_rng_state()["python"]

    with pytest.raises(ValueError, match=r"seed=|state="):
        call(value)

    assert get_rng_state()["python"] == before


def test_a_state_can_be_read_and_loaded():
    state = get_rng_state()
    first = draw()
    draw()

    load_rng_state(state)

    assert draw() == first
    assert {"python", "numpy", "torch"} <= state.keys()


@pytest.mark.parametrize("context", [lambda: seed_context(17), preserve_rng])
@pytest.mark.parametrize("error", [None, RuntimeError("no disk")])
def test_contexts_nest_and_restore_the_generators(context, error):
    seed_all(1)
    expected = draw(), draw()
    seed_all(1)
    outside = draw()

    with contextlib.suppress(RuntimeError), context():
        draw()
        before = get_rng_state()
        with seed_context(18):
            draw()
        assert torch.equal(get_rng_state()["torch"], before["torch"])
        if error:
            raise error

    assert (outside, draw()) == expected


def test_the_streams_of_a_run_are_pinned():
    # Another scheme would change every run that was ever recorded.
    with preserve_rng():
        seed_step(17, 3)
        assert torch.randint(1000, (4,)).tolist() == [71, 563, 144, 625]
        seed_step(17, 3, 1)
        assert torch.randint(1000, (4,)).tolist() == [765, 935, 490, 505]
        seed_epoch(17, 3)
        assert torch.randint(1000, (4,)).tolist() == [128, 954, 386, 278]
        seed_fetch(17, 3)
        assert torch.randint(1000, (4,)).tolist() == [54, 398, 84, 306]


@pytest.mark.parametrize("seed", [17, Key(17)])
def test_a_stream_depends_on_the_seed_and_the_number_alone(seed):
    def drawn(helper, *args):
        helper(*args)
        return torch.rand(()).item()

    for helper in (seed_step, seed_epoch, seed_fetch):
        first = drawn(helper, seed, 3)
        assert drawn(helper, 17, 3) == first
        assert drawn(helper, 17, 4) != first
        assert drawn(helper, 18, 3) != first
    assert len({drawn(helper, 17, 3) for helper in (seed_step, seed_epoch, seed_fetch)}) == 3


def test_steps_and_random_seeds_leave_the_other_generators_alone():
    before = get_rng_state()

    seeds = {get_random_seed() for _ in range(4)}
    assert torch.equal(torch.get_rng_state(), before["torch"])
    seed_step(17, 3)

    assert len(seeds) > 1
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert random.getstate() == before["python"]
    assert str(numpy.random.get_state()) == str(before["numpy"])  # noqa: NPY002


DETERMINISTIC = """
import os
import torch
from composable import Trainer
from composable.utils.reproducibility import configure_deterministic_mode

{call}
assert torch.are_deterministic_algorithms_enabled()
assert not torch.is_deterministic_algorithms_warn_only_enabled()
assert torch.backends.cudnn.deterministic
assert not torch.backends.cudnn.benchmark
assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == {workspace!r}
try:
    torch.zeros(2).put_(torch.tensor([0, 0]), torch.ones(2))
except RuntimeError as error:
    assert "deterministic" in str(error)
else:
    raise AssertionError("an operation that is not deterministic ran")
"""


@pytest.mark.parametrize(
    ("call", "workspace"),
    [
        ("configure_deterministic_mode()", ":16:8"),
        ("Trainer(torch.nn.Linear(1, 1), deterministic_mode=True, progress_bar=False)", None),
    ],
)
def test_deterministic_mode_raises_for_other_operations(call, workspace, tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "CUBLAS_WORKSPACE_CONFIG"}
    if workspace:  # what a user has set stays
        environment["CUBLAS_WORKSPACE_CONFIG"] = workspace
    script = DETERMINISTIC.format(call=call, workspace=workspace or ":4096:8")

    status, _, said = Command(tmp_path, script, environment).finish()

    assert status == 0, said


def test_deterministic_mode_is_off_by_default():
    make_trainer().fit()

    assert not torch.are_deterministic_algorithms_enabled()
