"""Laws: an external loop that saves and resumes."""

from functools import cache
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.own_run import LOADERS, MOMENTS, OwnRun, equal

runs = st.builds(
    OwnRun,
    loader=st.sampled_from(sorted(LOADERS.keys() - {"workers"})),
    parts=st.integers(1, 2),
    save_interval=st.sampled_from(["1ba", "2ba", "1ep"]),
    saves_epochs=st.booleans(),
)
kills = st.lists(st.tuples(st.sampled_from(MOMENTS), st.integers(1, 6)), min_size=1, max_size=4)


@cache
def uninterrupted(run):
    with TemporaryDirectory() as folder:
        return run.train(folder)


@pytest.mark.filterwarnings("ignore::composable.data.order.ReplayedBatchesWarning")
@given(runs, kills)
@settings(max_examples=25)
def test_a_loop_that_is_killed_anywhere_and_run_again_has_the_same_bits(run, kills):
    """If an external loop with `save_folder` and `autoresume` is killed at any
    moments, and run again until it ends, its weights, averages, optimizer, scheduler, own values
    and random numbers are those of a run that was never killed.
    """
    with TemporaryDirectory() as folder:
        assert equal(run.until_it_ends(folder, kills), uninterrupted(run))


@pytest.mark.parametrize("loader", sorted(LOADERS))
@pytest.mark.filterwarnings("ignore::composable.data.order.ReplayedBatchesWarning")
def test_a_loop_continues_at_every_moment_of_an_epoch(loader):
    """The same, at each moment and for each kind of loader."""
    run = OwnRun(loader, saves_epochs=loader in ("generator", "noisy"))
    kills = [(moment, 2) for moment in MOMENTS[:4]] + [(moment, 1) for moment in MOMENTS[4:]]
    kills = kills[3:5] if loader == "workers" else kills  # slow to start
    with TemporaryDirectory() as folder:
        assert equal(run.until_it_ends(folder, kills), uninterrupted(run))
