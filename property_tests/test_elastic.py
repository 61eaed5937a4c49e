"""Law: the number of processes changes nothing, wherever a run stops and continues."""

import tempfile
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composable.distributed import DDP
from tests.support import parallel_runs as runs
from tests.support.processes import by_options, run
from tests.support.strategies import fewest

fit = partial(by_options, runs.fit)


@pytest.mark.slow
@fewest
@given(
    sizes=st.lists(st.sampled_from([1, 2, 4]), min_size=2, max_size=2),
    stop=st.integers(1, 4),
    count=st.integers(33, 50),
    batch_size=st.sampled_from([12, 16]),
)
def test_a_run_that_moves_to_another_number_of_processes_has_the_same_bits(
    sizes, stop, count, batch_size
):
    options = {"count": count, "batch_size": batch_size, "parallel": DDP(shards=4, exact=True)}
    (whole,) = run(fit, 1, options)
    with tempfile.TemporaryDirectory() as folder:
        options["folder"] = str(Path(folder) / "run")
        callbacks = [runs.SignalAt(stop, rank=sizes[0] - 1)]
        run(fit, sizes[0], {**options, "callbacks": callbacks})
        moved = run(fit, sizes[1], options)
    for one in moved:
        for name in ("weights", "memory", "metrics", "batch", "sample", "loss"):
            assert one[name] == whole[name]
