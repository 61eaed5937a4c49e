"""Law: the update by any loss of a whole batch is that of the unsplit batch, by WholeLoss."""

from itertools import product

import pytest

from property_tests.test_split_losses import FULL, base_of
from tests.support.processes import run
from tests.support.split_losses import (
    LOSSES,
    OF_PROCESSES,
    PRECISIONS,
    SPLITS,
    WHOLE,
    attempt,
    attempts,
    outcome,
)

CASES = [
    case
    for case in product(SPLITS, WHOLE, PRECISIONS)
    # Other batches and shards have other random numbers, so they are parts of no whole.
    if "MixUp" not in case[1] or {"grad_accum", "microbatch_size"} & SPLITS[case[0]].keys()
]
NAMES = list(LOSSES) if FULL else [*list(LOSSES)[::12], "contrastive", "clip", "dice", "two tasks"]


def check(outcomes):
    """Check that every loss is right."""
    assert set(outcomes.values()) <= {"right", "not a loss of the method"}, outcomes
    assert "right" in outcomes.values()


@pytest.mark.parametrize(("split", "algorithms", "precision"), CASES if FULL else CASES[::5])
def test_update_by_any_loss_is_that_of_the_unsplit_batch(split, algorithms, precision):
    base = base_of(SPLITS[split], algorithms)

    check(
        {
            name: outcome(
                name,
                attempt(name, algorithms, precision, base),
                attempt(name, algorithms, precision, SPLITS[split]),
                PRECISIONS[precision],
            )
            for name in NAMES
        }
    )


@pytest.mark.parametrize("split", OF_PROCESSES)
def test_update_by_any_loss_is_that_of_the_unsplit_batch_in_two_processes(split):
    algorithms, precision = "WholeLoss", "fp32"

    first, second = run(attempts, 2, NAMES, algorithms, precision, OF_PROCESSES[split])

    assert first == second
    check(
        {
            name: outcome(name, attempt(name, "plain", precision, {}), one, PRECISIONS[precision])
            for name, one in first.items()
        }
    )
