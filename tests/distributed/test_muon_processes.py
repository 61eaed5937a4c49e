"""Muon on several processes, compared with one."""

import pytest

from tests.support import muon_runs
from tests.support.processes import run


@pytest.fixture(scope="module")
def alone():
    return {dtype: run(muon_runs.steps, 1, "copies", dtype)[0] for dtype in ("bfloat16", "float64")}


CASES = {
    "copies": (2, "copies", "bfloat16"),
    "copies, wide": (2, "copies", "float64"),
    "rows": (2, "rows", "bfloat16"),
    "rows, wide": (2, "rows", "float64"),
    "rows of four": (4, "rows", "bfloat16"),
    "hybrid": (4, "hybrid", "bfloat16"),
    "columns": (2, "columns", "bfloat16"),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_have_the_bits_of_one_process(name, alone):
    size, how, dtype = CASES[name]
    found, work = run(muon_runs.steps, size, how, dtype), alone[dtype]["work"]
    if how in ("copies", "rows"):
        assert sum(one["work"] for one in found) == work
        assert max(one["work"] for one in found) < 0.8 * work
    for one in found:
        assert one["weights"] == alone[dtype]["weights"]
        if how == "copies":  # a message of each owner, for each of two groups of matrices
            assert one["messages"] == ["broadcast"] * 3 * muon_runs.STEPS
        elif how != "columns":
            assert one["messages"] == ["all_to_all_single"] * 4 * muon_runs.STEPS
