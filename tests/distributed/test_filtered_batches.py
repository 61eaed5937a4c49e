"""Filtered batches in several processes: every shard by itself, by one proxy."""

import pytest

from composable.distributed import DDP
from tests.support.filtered_runs import filtered
from tests.support.processes import Failed, attempt, run

EXACT = {"parallel": DDP(shards=2, exact=True)}


@pytest.mark.parametrize("more", [{}, {"accumulate_batches": 2, "grad_accum": 2}], ids=str)
def test_two_processes_have_the_bits_of_one(more):
    expected = filtered({**EXACT, **more})

    first, second = run(filtered, 2, {**EXACT, **more})

    assert first == second == expected


def test_empty_shards_teach_nothing():
    options = {"parallel": DDP(shards=4, exact=True)}
    expected = filtered(options, count=19)  # the last batch has one example

    first, second = run(filtered, 2, options, None, 19)

    assert first == second == expected


def test_proxy_is_that_of_rank_0():
    expected = filtered(EXACT)

    first, second = run(filtered, 2, EXACT, None, 22, "own")

    assert first == second == expected


@pytest.mark.parametrize("parallel", [DDP(), DDP(shards=2, exact=True)], ids=["ddp", "exact"])
def test_masks_of_two_processes_are_replayed_on_two(parallel, tmp_path):
    options = {"parallel": parallel}
    saved = {**options, "save_folder": tmp_path}
    recorded, _ = run(filtered, 2, saved)

    first, second = run(filtered, 2, options, tmp_path / "ep2-ba8")

    assert first == second == {"weights": recorded["weights"]}


def test_masks_of_two_processes_are_replayed_on_one_with_as_many_shards(tmp_path):
    recorded, _ = run(filtered, 2, {**EXACT, "save_folder": tmp_path})

    assert filtered(EXACT, tmp_path / "ep2-ba8") == {"weights": recorded["weights"]}


def test_run_of_two_processes_resumes_bit_for_bit(tmp_path):
    whole, _ = run(filtered, 2, {**EXACT, "save_folder": tmp_path, "save_interval": "1ba"})

    first, second = run(filtered, 2, {**EXACT, "load_path": tmp_path / "ep0-ba3"})

    assert first == second == whole


def test_masks_of_another_number_of_shards_are_refused(tmp_path):
    filtered({"save_folder": tmp_path})

    failures = attempt(filtered, 2, EXACT, tmp_path / "ep2-ba8")

    assert all(isinstance(one, Failed) for one in failures)
    assert any("the batch has 3" in str(one) for one in failures)
