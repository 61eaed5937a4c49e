"""The step of SAM; test_averages.py has the laws of all functions of named tensors."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from composable.functional import sam_perturbation
from tests.support.tensors import FLOATS, named


@pytest.mark.parametrize("rho", [0.0, 0.05, 2.0])
def test_step_matches_the_paper(rho):
    params, grads = named(0, torch.float64), named(1, torch.float64)

    new = sam_perturbation(params, grads, rho=rho)

    size = torch.sqrt(sum((grad**2).sum() for grad in grads.values()))
    assert_close(new, {name: params[name] + rho * grads[name] / size for name in params})


def test_epsilon_is_added_to_the_norm():
    new = sam_perturbation({"w": torch.zeros(2)}, {"w": torch.tensor([3.0, 4.0])}, epsilon=5.0)

    assert_close(new["w"], 0.05 * torch.tensor([0.3, 0.4]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_without_gradients_nothing_moves(dtype):
    params = named(0, dtype)

    for grads in ({name: torch.zeros_like(p) for name, p in params.items()}, dict.fromkeys(params)):
        assert_close(sam_perturbation(params, grads), params, rtol=0, atol=0)
    assert sam_perturbation({}, {}) == {}


@pytest.mark.parametrize("size", [1e-4, 6e4])
def test_small_and_large_gradients_in_half_precision_have_a_finite_step(size):
    grads = {"w": torch.full((1000,), size, dtype=torch.float16)}

    new = sam_perturbation({"w": torch.zeros(1000, dtype=torch.float16)}, grads, rho=1.0)

    assert_close(new["w"], torch.full((1000,), 1000**-0.5, dtype=torch.float16))


def test_parameters_without_gradients_are_not_moved():
    params = {"a": torch.zeros(2), "frozen": torch.ones(2)}

    new = sam_perturbation(params, {"a": torch.tensor([3.0, 4.0]), "frozen": None}, rho=5.0)

    assert_close(new, {"a": torch.tensor([3.0, 4.0]), "frozen": torch.ones(2)})
    assert new["frozen"].data_ptr() != params["frozen"].data_ptr()


def test_sparse_gradients_match_dense_ones():
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1, 1, 3])).square().sum().backward()
    params, grads = {"w": table.weight}, {"w": table.weight.grad}
    assert grads["w"].is_sparse

    moved = sam_perturbation(params, grads)

    assert_close(moved, sam_perturbation(params, {"w": grads["w"].to_dense()}))


def test_each_dtype_is_moved_in_its_own_by_one_norm():
    kinds = [*FLOATS, torch.complex64]
    params = {str(dtype): torch.zeros(4, dtype=dtype) for dtype in kinds}
    grads = {str(dtype): torch.ones(4, dtype=dtype) for dtype in kinds}

    new = sam_perturbation(params, grads, rho=1.0)

    assert [value.dtype for value in new.values()] == kinds
    for value in new.values():
        expected = torch.full_like(value, 20**-0.5)
        assert_close(value, expected, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_gradients_give_nan(bad):
    new = sam_perturbation({"w": torch.zeros(2)}, {"w": torch.tensor([bad, 1.0])})

    assert new["w"].isnan().any()
