"""SOAP of the package `pytorch_optimizer`: its formula, and runs with it."""

from functools import partial

import pytest
import torch
from pytorch_optimizer import SOAP
from torch import nn
from torch.testing import assert_close

from composable.distributed import DDP
from composable.optim import by_role, cosine
from tests.support import parallel_runs
from tests.support.outcomes import resumes_exactly
from tests.support.processes import run
from tests.support.runs import PROBLEMS

FAST = partial(SOAP, lr=3e-3, precondition_frequency=2)
OPTIMIZERS = {
    "all": FAST,
    "matrices": by_role({"matrices": FAST}, default=partial(torch.optim.AdamW, lr=3e-3)),
}


def test_first_update_has_the_signs_of_the_gradient_in_the_eigenbases():
    draw = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.float64))
    first, second = (torch.randn(4, 4, generator=draw, dtype=torch.float64) for _ in range(2))
    optimizer = SOAP([weight], lr=0.1, weight_decay=0.0, eps=0.0)
    for weight.grad in (first.clone(), second.clone()):
        optimizer.step()

    left, right = (torch.linalg.eigh(one)[1] for one in (first @ first.T, first.T @ first))
    assert_close(weight.detach(), -0.1 * left @ (left.T @ second @ right).sign() @ right.T)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize("precision", ["fp32", "amp_bf16", "bf16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_run_resumes_bit_for_bit(name, precision, problem, tmp_path):
    options = {"optimizers": OPTIMIZERS[name], "schedulers": cosine(), "max_duration": "6ba"}
    options |= {"precision": precision}

    whole, _ = resumes_exactly(lambda **more: problem.trainer(**options, **more).fit(), tmp_path)

    assert whole.timestamp.batch == 6


def fit():
    model = parallel_runs.linear_net
    return parallel_runs.fit(model=model, optimizers=FAST, count=32, parallel=DDP(shards=2))


def test_two_processes_have_the_bits_of_one():
    (alone,) = run(fit, 1)

    assert [one["weights"] for one in run(fit, 2)] == [alone["weights"]] * 2
