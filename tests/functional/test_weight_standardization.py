"""Weight standardization."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.testing import assert_close

from composable.functional import NoEffectWarning, standardize_weight, weight_standardization
from tests.support.tensors import randn

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def by_formula(weight):
    flat = weight.flatten(1)
    mean, var = flat.mean(1, keepdim=True), flat.var(1, correction=0, keepdim=True)
    return ((flat - mean) / torch.sqrt(var + 1e-10)).view_as(weight)


def standardized(model):
    return [name for name, module in model.named_modules() if parametrize.is_parametrized(module)]


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_convolution_uses_the_weight_of_the_formula(dims, groups, mode):
    options = {"stride": 2, "padding": 1, "dilation": 2, "groups": groups, "padding_mode": mode}
    conv, x = CONVS[dims](4, 6, 3, **options), randn(2, 4, *[7] * dims)
    plain = copy.deepcopy(conv)
    plain.weight.data = by_formula(conv.weight.data)

    new = weight_standardization(conv)

    assert_close(new(x), plain(x))
    assert torch.equal(new.eval()(x), new.train()(x))
    removed = parametrize.remove_parametrizations(copy.deepcopy(new), "weight")
    assert type(removed) is CONVS[dims]
    assert_close(removed(x), plain(x))


@pytest.mark.parametrize(
    ("ignored", "expected"), [(0, ["0", "1.0", "3"]), (1, ["0", "1.0"]), (2, ["0"])]
)
def test_last_layers_can_be_ignored(ignored, expected):
    first, inner, last = (nn.Conv2d(3, 3, 3) for _ in range(3))
    model = nn.Sequential(first, nn.Sequential(inner), first, last)

    assert standardized(weight_standardization(model, n_last_layers_ignore=ignored)) == expected
    with pytest.warns(NoEffectWarning, match=r"for each output channel, except for the last 5\."):
        assert weight_standardization(model, n_last_layers_ignore=5) is model


def test_tied_convolutions_stay_tied():
    first, second = nn.Conv1d(3, 3, 3), nn.Conv1d(3, 3, 3)
    second.weight = first.weight

    new = weight_standardization(nn.Sequential(first, second))

    assert new[0].parametrizations.weight.original is new[1].parametrizations.weight.original


def test_units_of_a_single_weight_and_other_layers_are_not_replaced():
    others = [nn.Conv2d(4, 4, 1, groups=4), nn.ConvTranspose2d(4, 4, 3), nn.Linear(4, 4)]

    assert standardized(weight_standardization(nn.Sequential(nn.Conv2d(4, 4, 1), *others))) == ["0"]


def test_is_applied_after_other_parametrizations():
    conv, x = parametrizations.weight_norm(nn.Conv1d(3, 4, 3)), randn(2, 3, 5)
    plain = nn.Conv1d(3, 4, 3)
    plain.load_state_dict({"weight": by_formula(conv.weight.detach()), "bias": conv.bias.detach()})

    new = weight_standardization(conv)

    assert_close(new(x), plain(x))
    assert len(conv.parametrizations.weight) == 1
    assert weight_standardization(new) is new


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_constant_weights_become_zero_in_half_precision(dtype):
    assert (standardize_weight(torch.full((2, 9), 0.1, dtype=dtype)) == 0).all()
    assert standardize_weight(randn(2, 9, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("training", [True, False])
def test_mode_of_every_module_is_kept(training):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)).train(training)

    modules = weight_standardization(model).modules()

    assert {module.training for module in modules} == {training}
