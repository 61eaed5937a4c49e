"""SOAP of the package `pytorch_optimizer`: its formula, and runs with it."""

import torch
from pytorch_optimizer import SOAP
from torch import nn
from torch.testing import assert_close

from composable.distributed import DDP
from tests.support import parallel_runs
from tests.support.optimizers import RUNS
from tests.support.processes import run


def test_first_update_has_the_signs_of_the_gradient_in_the_eigenbases():
    draw = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.float64))
    first, second = (torch.randn(4, 4, generator=draw, dtype=torch.float64) for _ in range(2))
    optimizer = SOAP([weight], lr=0.1, weight_decay=0.0, eps=0.0)
    for weight.grad in (first.clone(), second.clone()):
        optimizer.step()

    left, right = (torch.linalg.eigh(one)[1] for one in (first @ first.T, first.T @ first))
    assert_close(weight.detach(), -0.1 * left @ (left.T @ second @ right).sign() @ right.T)


def fit():
    model = parallel_runs.linear_net
    return parallel_runs.fit(
        model=model, optimizers=RUNS["soap"]["optimizers"], count=32, parallel=DDP(shards=2)
    )


def test_two_processes_have_the_bits_of_one():
    (alone,) = run(fit, 1)

    assert [one["weights"] for one in run(fit, 2)] == [alone["weights"]] * 2
