"""The laws of the running mean of weights."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.testing import assert_close

from composable.functional import swa
from tests.support.tiny import generator, seeded

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
X = torch.eye(3)


def named(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(3, 4, generator=generator).to(dtype),
        "bias": torch.randn((), generator=generator).to(dtype),
    }


def test_repeated_it_is_the_mean():
    values = [named(seed, torch.float64) for seed in range(7)]

    average = values[0]
    for count, value in enumerate(values[1:], start=1):
        average = swa(average, value, count)

    expected = {name: torch.stack([v[name] for v in values]).mean(0) for name in values[0]}
    assert_close(average, expected)


def test_a_mean_of_no_model_may_hold_anything():
    nothing = {"w": torch.tensor([float("nan"), float("inf")], dtype=torch.float64)}
    current = {"w": torch.tensor([1.0, 2.0])}

    first = swa(nothing, current, 0)

    assert_close(first, {"w": torch.tensor([1.0, 2.0], dtype=torch.float64)})
    assert first["w"].data_ptr() != swa(first, current, 0)["w"].data_ptr()


def net():
    return seeded(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)))


def test_it_is_what_torchs_averaged_model_has():
    model = net()
    theirs, ours = AveragedModel(model, use_buffers=True), model.state_dict()
    draw = generator()

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


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", [0, 1, 2, 10**6])
def test_the_mean_of_a_constant_is_that_constant(dtype, count):
    constant = named(0, dtype)

    new = swa(constant, constant, count)

    assert all(torch.equal(new[name], constant[name]) for name in constant)


def test_the_first_model_is_its_own_mean():
    new = swa(named(0), named(1), 0)

    assert all(torch.equal(new[name], named(1)[name]) for name in new)


def test_counts_and_masks_are_copied():
    average = {"count": torch.tensor(1), "mask": torch.tensor([True, False])}
    current = {"count": torch.tensor(500), "mask": torch.tensor([False, True])}

    new = swa(average, current, 3)
    current["count"] += 1

    assert new["count"] == 500
    assert new["mask"].tolist() == [False, True]


def test_the_mean_keeps_its_dtypes():
    new = swa({"w": torch.zeros(1)}, {"w": torch.full((1,), 512.0, dtype=torch.bfloat16)}, 511)

    assert new["w"].dtype == torch.float32
    assert_close(new["w"], torch.tensor([1.0]))


def test_the_result_is_new_and_detached_and_in_order(still_generators):
    model = net()
    before = copy.deepcopy(model.state_dict())
    params = dict(model.named_parameters())

    new = swa(params, params, 1)

    assert list(new) == list(params)
    assert not any(value.requires_grad for value in new.values())
    assert all(new[name].data_ptr() != params[name].data_ptr() for name in params)
    assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: swa([X], {"w": X}, 1),
            TypeError,
            "average must be a mapping of names to tensors, not a list",
        ),
        (
            lambda: swa({"w": X}, None, 1),
            TypeError,
            "current must be a mapping of names to tensors, not None",
        ),
        (
            lambda: swa({"w": 1.0}, {"w": X}, 1),
            TypeError,
            r"average\['w'\] must be a tensor, not a float",
        ),
        (
            lambda: swa({"w": X}, {"w": 1.0}, 1),
            TypeError,
            r"current\['w'\] must be a tensor, not a float",
        ),
        (lambda: swa({"w": X}, {}, 1), ValueError, "only average has w and only current has none"),
        (
            lambda: swa({"w": X}, {"w": X[0]}, 1),
            ValueError,
            r"average\['w'\] has shape \(3, 3\), but current\['w'\] has \(3,\)",
        ),
        (lambda: swa({}, {}, -1), ValueError, "count=-1 must be at least 0"),
        (lambda: swa({}, {}, 1.0), TypeError, "count=1.0 must be an integer"),
        (lambda: swa({}, {}, True), TypeError, "count=True must be an integer"),
        (lambda: swa({}, {}, None), TypeError, "count=None must be an integer"),
    ],
)
def test_wrong_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
