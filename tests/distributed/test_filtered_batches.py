"""Filtered batches in several processes: every shard by itself, by one proxy."""

import pytest

from composable.distributed import DDP
from tests.support.filtered_runs import filtered
from tests.support.processes import run

EXACT = {"parallel": DDP(shards=2, exact=True)}
CASES = {
    "plain": (EXACT, 22),
    "microbatches": ({**EXACT, "accumulate_batches": 2, "grad_accum": 2}, 22),
    "empty shards": ({"parallel": DDP(shards=4, exact=True)}, 19),  # at last one example
    "the proxy of rank 0": (EXACT, 22, "own"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_two_processes_have_the_bits_of_one(case):
    first, second = run(filtered, 2, *case)

    assert first == second == filtered(*case[:2])


def test_run_of_two_processes_resumes_bit_for_bit(tmp_path):
    whole, _ = run(filtered, 2, {**EXACT, "save_folder": tmp_path, "save_interval": "1ba"})

    first, second = run(filtered, 2, {**EXACT, "load_path": tmp_path / "ep0-ba3"})

    assert first == second == whole
