"""Training steps of several updates on several processes."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from composable.distributed import DDP, FSDP2
from tests.support.data import batches
from tests.support.processes import run
from tests.support.updates import (
    adam,
    fit_updates,
    lbfgs,
    rows_of_a_resumed_run,
    weights_at_fetches,
)

EXACT = DDP(exact=True, shards=2)
CASES = {
    "adam": {"optimizer": adam},
    "closure": {"optimizer": lbfgs},
    "microbatches": {"grad_accum": 2, "norm": False},
}


def compared(strategy, alone, options):
    """Return the results of one process, and those of rank 0 of two."""
    (one,) = run(fit_updates, 1, alone, copy.copy(options))
    return one, run(fit_updates, 2, strategy, copy.copy(options))[0]


@pytest.mark.parametrize("name", CASES)
def test_updates_of_any_number_of_processes_have_the_same_bits(name):
    one, two = compared(EXACT, EXACT, CASES[name])
    assert two == one


@pytest.mark.parametrize("strategy", [DDP(), FSDP2()], ids=["ddp", "fsdp2"])
@pytest.mark.parametrize("split", [{}, {"grad_accum": 2}], ids=["whole", "microbatches"])
def test_updates_of_several_processes_are_equal_to_rounding(strategy, split):
    """A model is evaluated as a whole, too, whose parts the losses have called."""
    options = {"norm": False, "loss_fn": cross_entropy, "eval_dataloader": batches(8), **split}
    one, two = compared(strategy, None, options)
    assert two["reducers"] == (2 if isinstance(strategy, DDP) else 0)
    for name in ("weights", "averages", "losses"):
        assert one[name].keys() == two[name].keys()
        for key, values in one[name].items():
            found = torch.tensor(two[name][key])
            torch.testing.assert_close(found, torch.tensor(values), rtol=1e-5, atol=1e-6)


def test_a_loader_reads_the_weights_after_the_last_update():
    for fetched, ended in run(weights_at_fetches, 2, DDP()):
        assert len(fetched) == len(ended) == 3
        assert fetched[1:] == ended[:-1]


def test_a_resumed_log_of_processes_has_the_losses_since_its_last_row(tmp_path):
    rows, _ = run(rows_of_a_resumed_run, 2, FSDP2(), str(tmp_path))
    often = ["loss/train/upper", "loss/train/upper/size"]
    assert rows == [often, ["loss/train/lower", *often]]
