"""Muon on several processes, compared with one."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from composable.functional import polar_express_coefficients
from tests.support import muon_runs
from tests.support.campaign import drawn
from tests.support.processes import error_of, run


@pytest.fixture(scope="module")
def alone():
    return {dtype: run(muon_runs.steps, 1, "copies", dtype)[0] for dtype in ("bfloat16", "float64")}


OPTIONS = {
    "equalize_rows": True,
    "slow_momentum": 0.98,
    "neuron_beta2": 0.95,
    "update_floor": 2.0,
    "ns_coefficients": polar_express_coefficients(),
}


@pytest.fixture(scope="module")
def alone_with_options():
    return run(partial(muon_runs.steps, **OPTIONS), 1, "copies", "bfloat16")[0]


def test_soap_before_muon_has_the_bits_of_one_process_and_needs_whole_matrices():
    steps = partial(muon_runs.steps, soap_beta2=0.9)
    expected = run(steps, 1, "copies", "bfloat16")[0]["weights"]

    assert [one["weights"] for one in run(steps, 2, "copies", "bfloat16")] == [expected] * 2
    for error in run(error_of, 2, steps, "rows", "bfloat16"):
        assert "soap_beta2=0.9 needs whole matrices" in error


@pytest.mark.parametrize("how", ["copies", "rows", "columns"])
def test_steps_with_all_options_are_those_of_one_process(how, alone, alone_with_options):
    expected = alone_with_options["weights"]
    assert expected != alone["bfloat16"]["weights"]
    for one in run(partial(muon_runs.steps, **OPTIONS), 2, how, "bfloat16"):
        if how == "columns":  # norms of rows are sums over processes
            for ours, theirs in zip(one["weights"], expected, strict=True):
                assert_close(torch.tensor(ours), torch.tensor(theirs))
        else:
            assert one["weights"] == expected


@pytest.mark.parametrize("how", ["copies", "rows"])
def test_steps_of_experts_have_the_bits_of_one_process(how):
    steps = partial(muon_runs.steps, experts=True)
    expected = run(steps, 1, "copies", "bfloat16")[0]["weights"]

    assert [one["weights"] for one in run(steps, 2, how, "bfloat16")] == [expected] * 2


def test_scaled_rows_of_experts_need_whole_matrices():
    steps = partial(muon_runs.steps, experts=True, **OPTIONS)
    for error in run(error_of, 2, steps, "rows", "bfloat16"):
        assert "of a batch of matrices need whole matrices" in error


CASES = {
    "copies": (2, "copies", "bfloat16"),
    "copies, wide": (2, "copies", "float64"),
    "rows": (2, "rows", "bfloat16"),
    "rows, wide": (2, "rows", "float64"),
    "rows of four": (4, "rows", "bfloat16"),
    "hybrid": (4, "hybrid", "bfloat16"),
    "columns": (2, "columns", "bfloat16"),
}


@pytest.mark.parametrize("name", drawn(CASES, 4))
def test_steps_have_the_bits_of_one_process(name, alone):
    size, how, dtype = CASES[name]
    found, work = run(muon_runs.steps, size, how, dtype), alone[dtype]["work"]
    if how in ("copies", "rows"):
        assert sum(one["work"] for one in found) == work
        assert max(one["work"] for one in found) < 0.8 * work
    for one in found:
        assert one["weights"] == alone[dtype]["weights"]
        if how == "copies":  # a message of each owner, for each of two groups of matrices
            assert one["messages"] == {"broadcast": 3 * muon_runs.STEPS}
        elif how != "columns":
            assert one["messages"] == {"alltoall_base": 4 * muon_runs.STEPS}
