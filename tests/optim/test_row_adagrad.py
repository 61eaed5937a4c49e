"""Row-wise Adagrad: known values, sparse gradients, decay and resuming."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from composable.optim import RowAdagrad
from tests.support.models import seeded

TOKENS = torch.tensor([[1, 4, 4], [2, 1, 0]])


def table(*, sparse, dtype=torch.float32):
    return seeded(lambda: nn.Embedding(9, 4, sparse=sparse, dtype=dtype))


def trained(module, optimizer, steps=5):
    """Train rows 0, 1, 2 and 4, and return the weights."""
    for step in range(steps):
        optimizer.zero_grad()
        (module(TOKENS).float() - step).square().sum().backward()
        optimizer.step()
    return module.weight.detach()


def test_rows_of_one_element_are_those_of_adagrad():
    found, expected = (seeded(lambda: nn.Parameter(torch.randn(7))) for _ in range(2))
    optimizers = [RowAdagrad([found], lr=0.3), torch.optim.Adagrad([expected], lr=0.3)]
    for step in range(4):
        for one in (found, expected):
            one.grad = seeded(lambda: torch.randn(7), step)
        for optimizer in optimizers:
            optimizer.step()

    assert_close(found, expected)


def test_a_step_by_hand():
    weight = nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    optimizer = RowAdagrad([weight], lr=0.5, weight_decay=0.2, eps=0.0)
    weight.grad = torch.tensor([[3.0, 4.0], [0.0, 0.0]])

    optimizer.step()

    root = 12.5**0.5  # of the mean of 9 and 16
    assert_close(weight[0], torch.tensor([0.9 - 1.5 / root, 1.8 - 2.0 / root]))
    assert torch.equal(weight[1], torch.tensor([3.0, 4.0]))  # no gradient, no decay


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_sparse_gradients_train_the_weights_of_dense_ones(dtype):
    sparse, dense = (table(sparse=one, dtype=dtype) for one in (True, False))
    build = partial(RowAdagrad, lr=0.1, weight_decay=0.5)

    found = trained(sparse, build(sparse.parameters()))
    expected = trained(dense, build(dense.parameters()))

    assert_close(found, expected)
    assert torch.equal(found[[3, 5]], table(sparse=True, dtype=dtype).weight[[3, 5]])


def test_rows_of_any_shape_and_layout_are_those_of_a_matrix():
    gradient = seeded(lambda: torch.randn(3, 2, 2))
    kernel = nn.Parameter(torch.ones(3, 2, 2).transpose(1, 2))  # not contiguous
    matrix = nn.Parameter(torch.ones(3, 4))
    scalar = nn.Parameter(torch.ones(()))
    kernel.grad, matrix.grad, scalar.grad = gradient, gradient.flatten(1), torch.tensor(-2.0)

    RowAdagrad([kernel, matrix, scalar], lr=0.1).step()

    assert_close(kernel.flatten(1), matrix)
    assert_close(scalar, torch.tensor(1.1))


@pytest.mark.parametrize(
    ("shape", "sparse"), [((3, 4), True), ((3,), True), ((0, 4), False), ((0,), False)]
)
def test_gradients_without_rows_change_nothing(shape, sparse):
    weight = nn.Parameter(torch.ones(shape))
    before = weight.detach().clone()
    optimizer = RowAdagrad([weight], weight_decay=0.5)
    weight.grad = torch.zeros(shape)
    if sparse:
        weight.grad = weight.grad.to_sparse(1)

    optimizer.step()

    assert torch.equal(weight, before)
    assert optimizer.state[weight]["sum"].equal(torch.zeros(shape[0]))
