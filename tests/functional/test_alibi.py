"""The laws of ALiBi: the biases of the paper, and attention of one's own that takes them."""

import math
import sys

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import composable.functional as F
from tests.support.runs import Attention, BiasedAttention, Places, language_model

# --- the paper ---


def slopes_of_the_paper(heads):
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]
    power = 2 ** math.floor(math.log2(heads))
    return slopes_of_the_paper(power) + slopes_of_the_paper(2 * power)[0::2][: heads - power]


@pytest.mark.parametrize("heads", [*range(1, 18), 32, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_slopes_are_those_of_the_paper(heads, dtype):
    expected = torch.tensor(slopes_of_the_paper(heads), dtype=dtype)

    assert_close(F.alibi_slopes(heads, dtype=dtype), expected)


def test_slopes_of_eight_heads_halve_from_a_half_on():
    assert F.alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]


def test_the_bias_is_the_slope_times_the_distance():
    bias, slopes = F.alibi_bias(6, 3, past=2), F.alibi_slopes(6)

    assert bias.shape == (6, 3, 5)
    for head, query, key in torch.cartesian_prod(*map(torch.arange, bias.shape)):
        expected = -slopes[head] * abs(query + 2 - key)
        assert bias[head, query, key] == expected


# --- one's own attention ---


def test_a_class_of_ones_own_is_converted_as_it_was_registered():
    model, ids = language_model(one_by_one=True), torch.tensor([[1, 2, 3, 4]])

    new = F.alibi(model, max_sequence_length=50)

    assert type(new.attention) is BiasedAttention
    assert type(model.attention) is Attention
    assert type(model.places) is Places
    assert new.attention.weight is model.attention.weight
    assert set(model.state_dict()) - set(new.state_dict()) == {"places.weight"}
    longer = torch.cat([ids, ids, ids], 1)  # longer than the table
    assert_close(new(longer)[..., :4], new(ids))
    assert F.alibi(new, max_sequence_length=50) is new


class Mine(nn.Linear):
    pass


class Wrapper(nn.Module):
    def __init__(self, inner, length):
        super().__init__()
        self.inner, self.length = inner, length

    def forward(self, x):
        return self.inner(x) * self.length


@pytest.fixture
def register():
    before = dict(registry().entries)
    yield F.register_alibi
    registry().entries = before


def registry():
    return sys.modules["composable.functional.alibi"].REGISTRY


def test_a_conversion_may_wrap_the_module_and_is_not_repeated(register):
    register(Mine)(Wrapper)

    once = F.alibi(nn.Sequential(Mine(2, 2), nn.ReLU()), max_sequence_length=3)

    x = torch.ones(1, 2)
    assert_close(once[0](x), 3 * once[0].inner(x))
    assert F.alibi(once, max_sequence_length=3) is once


def test_a_class_is_found_by_its_name_and_a_subclass_by_its_base(register):
    class Child(Mine):
        pass

    register(f"{Mine.__module__}.Mine")(Wrapper)
    new = F.alibi(nn.Sequential(Child(2, 2)), max_sequence_length=3)
    assert type(new[0]) is Wrapper

    register(Child)(lambda module, length: nn.Tanh())
    new = F.alibi(nn.Sequential(Child(2, 2), Mine(2, 2)), max_sequence_length=3)
    assert [type(module) for module in new] == [nn.Tanh, Wrapper]


def test_a_conversion_that_changes_its_module_leaves_the_original_alone(register):
    @register(Mine)
    def double(module, max_sequence_length):
        module.factor = 2
        module.weight = nn.Parameter(module.weight.detach() * 2)
        return module

    model = nn.Sequential(Mine(2, 2))
    before = model[0].weight.clone()
    new = F.alibi(model, max_sequence_length=3)

    assert_close(new[0].weight, 2 * before)
    assert torch.equal(model[0].weight, before)
    assert not hasattr(model[0], "factor")


def test_a_conversion_must_return_a_module(register):
    register(Mine)(lambda module, length: None)

    with pytest.raises(TypeError, match=r"conversion of .*Mine must return a module, not None"):
        F.alibi(nn.Sequential(Mine(2, 2)), max_sequence_length=3)


# --- invalid arguments ---


def test_a_model_without_attention_that_is_known_is_reported():
    with pytest.warns(F.NoEffectWarning, match=r"looked for .*GPT2Attention.* register_alibi"):
        F.alibi(nn.Linear(2, 2), max_sequence_length=8)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: F.alibi(3, max_sequence_length=8),
            TypeError,
            "model must be a torch.nn.Module, not an int",
        ),
        (
            lambda: F.alibi(nn.Identity(), max_sequence_length=0),
            ValueError,
            "max_sequence_length=0 must be at least 1",
        ),
        *(
            (
                lambda bad=bad: F.alibi(nn.Identity(), max_sequence_length=bad),
                TypeError,
                f"max_sequence_length={bad!r} must be an integer",
            )
            for bad in (2.0, True, "8", None, float("nan"))
        ),
        (lambda: F.alibi_slopes(0), ValueError, "heads=0 must be at least 1"),
        (lambda: F.alibi_slopes(1.5), TypeError, "heads=1.5 must be an integer"),
        (lambda: F.alibi_bias(1, -1), ValueError, "length=-1 must be at least 0"),
        (lambda: F.alibi_bias(1, 1, past=-1), ValueError, "past=-1 must be at least 0"),
        (lambda: F.alibi_bias(True, 1), TypeError, "heads=True must be an integer"),
        (
            lambda: F.register_alibi("Attention")(Wrapper),
            TypeError,
            "kinds='Attention' must be a class of modules, or its full name",
        ),
        (lambda: F.register_alibi(int)(Wrapper), TypeError, "kinds=<class 'int'> must be"),
        (lambda: F.register_alibi(Mine)(3), TypeError, "conversion=3 must be a function"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_arguments_are_checked(call, error, message):
    with pytest.raises(error, match=message):
        call()
