"""The loss of a whole batch in several processes: its parameters count once, and bits stay."""

import pytest
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from composable.algorithms import EMA, GradientClipping, WholeLoss
from composable.distributed import DDP, FSDP2
from tests.support.contrastive import trained_pair, trained_with
from tests.support.processes import attempt, run

EXACT = {"parallel": DDP(shards=4, exact=True), "accumulate_batches": 2, "grad_accum": 2}


def close(found, expected, tolerance=1e-5):
    return found["losses"] == pytest.approx(expected["losses"], rel=tolerance) and all(
        found[part][name] == pytest.approx(values, rel=tolerance, abs=tolerance)
        for part in ("gradients", "weights")
        for name, values in expected[part].items()
    )


@pytest.mark.parametrize(
    "options",
    [
        {"parallel": DDP()},
        {"parallel": DDP(shards=4), "grad_accum": 2},
        {"parallel": DDP(shards=16)},
        {"parallel": DDP(comm_hook=allreduce_hook), "grad_accum": 2},
        {"parallel": FSDP2()},
        {"parallel": FSDP2(), "microbatch_size": 2},
    ],
    ids=["ddp", "microbatches", "empty shards", "hook", "fsdp2", "fsdp2, microbatches"],
)
def test_a_learned_temperature_and_both_encoders_get_the_gradients_of_the_whole(options):
    algorithms = [EMA(half_life="2ba"), GradientClipping("norm", 0.1)]
    expected = trained_pair(10, 3, algorithms=algorithms)

    first, second = run(trained_with, 2, options, algorithms)

    assert first == second
    assert close(first, expected)
    assert first["calls"] == expected["calls"] == 4


def test_exact_sums_have_the_bits_of_one_process():
    expected = trained_pair(10, 3, algorithms=[WholeLoss()], **EXACT)

    assert all(found == expected for found in run(trained_with, 4, EXACT))


def test_a_search_for_the_size_that_fits_is_refused_in_several_processes():
    failures = attempt(trained_with, 2, {"parallel": DDP(), "microbatch_size": "auto"})

    assert all("one that is short of memory can't repeat" in str(one) for one in failures)
