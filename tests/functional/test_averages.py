"""Averages of weights, exponential and plain, and other functions of named tensors."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.testing import assert_close

from composable.functional import ema, ema_smoothing, sam_perturbation, swa
from tests.support.models import linear
from tests.support.models import seeded as seeded_model
from tests.support.tensors import FLOATS, named, seeded

AVERAGES = {
    "ema": partial(ema, smoothing=0.75),
    "swa": partial(swa, count=3),
}
both_averages = pytest.mark.parametrize("average", AVERAGES.values(), ids=AVERAGES)


def net():
    return seeded_model(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)))


# The formulas


@pytest.mark.parametrize("smoothing", [0.0, 0.3, 0.5, 0.999, 1.0])
def test_ema_matches_the_formula(smoothing):
    a, c = named(0), named(1)

    new = ema(a, c, smoothing=smoothing)

    assert_close(new, {name: smoothing * a[name] + (1 - smoothing) * c[name] for name in a})
    if smoothing in (0, 1):  # both ends are exact
        assert all(torch.equal(new[name], (a if smoothing else c)[name]) for name in a)


def test_smoothing_of_half_lives():
    assert ema_smoothing(100, 100) == 0.5
    assert ema_smoothing(1000) ** 1000 == pytest.approx(0.5)
    assert ema_smoothing(half_life=10, update_interval=20) == 0.25


def test_first_update_ignores_the_previous_average():
    nothing = {"w": torch.tensor([float("nan"), float("inf")], dtype=torch.float64)}
    current = {"w": torch.tensor([1.0, 2.0])}

    first = swa(nothing, current, 0)

    assert_close(first, {"w": torch.tensor([1.0, 2.0], dtype=torch.float64)})
    assert first["w"].data_ptr() != swa(first, current, 0)["w"].data_ptr()


def test_swa_matches_averaged_model_of_torch():
    model = net()
    theirs, ours = AveragedModel(model, use_buffers=True), model.state_dict()
    draw = seeded()

    for count in range(5):
        for parameter in model.parameters():
            with torch.no_grad():
                parameter.add_(torch.randn(parameter.shape, generator=draw))
        model(torch.randn(6, 4, generator=draw))
        theirs.update_parameters(model)
        ours = swa(ours, model.state_dict(), count)

    expected = theirs.module.state_dict()
    expected["1.num_batches_tracked"] = model.state_dict()["1.num_batches_tracked"]
    assert_close(ours, dict(expected))


# Both averages


@both_averages
def test_each_dtype_is_averaged_in_its_own_and_integers_are_copied(average):
    kinds = [*FLOATS, torch.complex64]
    old = {str(dtype): torch.zeros(2, dtype=dtype) for dtype in kinds}
    current = {name: torch.ones_like(value) for name, value in old.items()}
    counts = {"count": torch.tensor(500), "mask": torch.tensor([False, True])}
    before = {"count": torch.tensor(1), "mask": torch.tensor([True, False])}

    new = average({**old, **before}, {**current, **counts})
    counts["count"] += 1

    assert new.pop("count") == 500
    assert new.pop("mask").tolist() == [False, True]
    assert [value.dtype for value in new.values()] == kinds
    assert all((value == 0.25).all() for value in new.values())
    assert average({}, {}) == {}


@pytest.mark.parametrize("average", [partial(ema, smoothing=0.9999), partial(swa, count=9999)])
def test_averages_of_half_precision_weights_are_float32(average):
    new = average({"w": torch.ones(1)}, {"w": torch.full((1,), 2.0, dtype=torch.bfloat16)})

    assert new["w"].dtype == torch.float32
    assert_close(new["w"], torch.tensor([1.0001]))


# All functions of named tensors

NAMED = {**AVERAGES, "sam": sam_perturbation}


@pytest.mark.parametrize("function", NAMED.values(), ids=NAMED)
def test_results_are_new_detached_and_ordered(function, still_generators):
    params = dict(linear().named_parameters())
    before = {name: value.detach().clone() for name, value in params.items()}
    others = {name: torch.ones_like(value).requires_grad_() for name, value in params.items()}

    new = function(params, dict(reversed(others.items())))

    assert list(new) == ["weight", "bias"]
    assert not any(value.requires_grad for value in new.values())
    assert all(new[name].data_ptr() != params[name].data_ptr() for name in params)
    assert all(torch.equal(params[name], before[name]) for name in params)


# --- the step of SAM ---


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
