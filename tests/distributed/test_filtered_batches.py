"""Filtered batches in several processes: every shard by itself, by one proxy."""

import pytest

from composable.distributed import DDP
from tests.support.filtered_runs import filtered
from tests.support.processes import run

EXACT = {"parallel": DDP(shards=2, exact=True)}


@pytest.mark.parametrize("more", [{}, {"accumulate_batches": 2, "grad_accum": 2}], ids=str)
def test_two_processes_have_the_bits_of_one(more):
    expected = filtered({**EXACT, **more})

    first, second = run(filtered, 2, {**EXACT, **more})

    assert first == second == expected


def test_empty_shards_teach_nothing():
    options = {"parallel": DDP(shards=4, exact=True)}
    expected = filtered(options, count=19)  # the last batch has one example

    first, second = run(filtered, 2, options, 19)

    assert first == second == expected


def test_proxy_is_that_of_rank_0():
    expected = filtered(EXACT)

    first, second = run(filtered, 2, EXACT, 22, "own")

    assert first == second == expected


def test_run_of_two_processes_resumes_bit_for_bit(tmp_path):
    whole, _ = run(filtered, 2, {**EXACT, "save_folder": tmp_path, "save_interval": "1ba"})

    first, second = run(filtered, 2, {**EXACT, "load_path": tmp_path / "ep0-ba3"})

    assert first == second == whole
