"""Classes of one's own in the registries of `alibi` and `gated_linear_units`."""

import sys

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import composable.functional as F
from tests.support.models import Places, language_model
from tests.support.tensors import seeded


class Mine(nn.Sequential):
    """A block that no method knows."""

    def __init__(self):
        super().__init__(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))


class Wrapper(nn.Module):
    """A conversion: a module around the original one."""

    def __init__(self, inner, length):
        super().__init__()
        self.inner, self.length = inner, length

    def forward(self, x):
        return self.inner(x) * self.length


def alibi(model):
    return F.alibi(model, max_sequence_length=3)


def gate(model):
    return F.gated_linear_units(model, generator=seeded())


def register_block(kind, *, linear="0", activation="1"):
    F.register_gated_linear_units(kind, linear=linear, activation=activation)


def register_wrapper(kind, other=False):
    F.register_alibi(kind)((lambda module, length: nn.Tanh()) if other else Wrapper)


def register_part(kind, other=False):
    register_block(kind, linear="2" if other else "0")


@pytest.fixture(autouse=True)
def _restore_registries():
    names = ("alibi", "gated_linear_units", "rotary")
    registries = [sys.modules[f"composable.functional.{name}"].REGISTRY for name in names]
    before = [dict(registry.entries) for registry in registries]
    yield
    for registry, entries in zip(registries, before, strict=True):
        registry.entries = entries


@pytest.mark.parametrize(
    ("operate", "register"), [(alibi, register_wrapper), (gate, register_part)]
)
def test_class_is_found_by_name_and_subclass_by_its_base(operate, register):
    class Child(Mine):
        pass

    register(f"{Mine.__module__}.Mine")
    (first,) = operate(nn.Sequential(Child()))
    register(Child, other=True)
    new = operate(nn.Sequential(Child(), Mine()))

    assert repr(first) not in (repr(Child()), repr(new[0]))
    assert repr(new[0]) != repr(Child())
    assert repr(new[1]) == repr(first).replace("Child", "Mine")


def test_conversion_can_wrap_the_module_and_is_not_repeated():
    F.register_alibi(Mine)(Wrapper)

    once = alibi(nn.Sequential(Mine(), nn.ReLU()))

    x = torch.ones(1, 2)
    assert_close(once[0](x), 3 * once[0].inner(x))
    assert alibi(once) is once


def test_conversion_that_modifies_its_module_does_not_modify_the_original():
    @F.register_alibi(nn.Linear)
    def double(module, max_sequence_length):
        module.factor = 2
        module.weight = nn.Parameter(module.weight.detach() * 2)
        return module

    model = Mine()
    before = model[0].weight.clone()
    new = alibi(model)

    assert_close(new[0].weight, 2 * before)
    assert torch.equal(model[0].weight, before)
    assert not hasattr(model[0], "factor")


POSITIONS = pytest.mark.parametrize(
    ("operate", "register"), [(alibi, F.register_alibi), (F.rotary, F.register_rotary)]
)


@POSITIONS
def test_rejects_conversion_that_returns_no_module(operate, register, unchecked):
    register(Mine)(lambda module, option: None)

    with pytest.raises(TypeError, match=r"conversion of .*Mine must return a module, not None"):
        operate(Mine())
    with pytest.raises(TypeError, match="conversion=3 must be a function"):
        register(Mine)(3)


@POSITIONS
def test_model_with_registered_attention_loses_its_table_of_positions(operate, register):
    model, ids = language_model(one_by_one=True), torch.tensor([[1, 2, 3, 4]])

    new = operate(model)

    assert type(model.places) is Places
    assert model.attention.rotation is None
    assert not model.attention.biased
    assert new.attention.weight is model.attention.weight
    assert set(model.state_dict()) - set(new.state_dict()) == {"places.weight"}
    longer = torch.cat([ids, ids, ids], 1)  # longer than the table
    assert_close(new(longer)[..., :4], new(ids))
    assert not torch.allclose(new(ids), model(ids))


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        (("5", "1"), ValueError, "Mine has no part '5', which is registered .* names of its parts"),
        (("0.up", "1"), ValueError, "Mine has no part '0.up', which is registered"),
        (("0", "act"), ValueError, "Mine has no part 'act', which is registered for it"),
        (("1", "0"), TypeError, "block.1 must be a torch.nn.Linear .* not a Tanh"),
        (("3", "1"), ValueError, "block.3 is lazy and its channels are not known yet"),
    ],
)
def test_rejects_block_without_the_registered_parts(names, error, message):
    register_block(Mine, linear=names[0], activation=names[1])
    block = Mine().append(nn.LazyLinear(3))
    with pytest.raises(error, match=message):
        gate(nn.ModuleDict({"block": block}))


def test_rejects_factorized_block():
    register_block(Mine)
    block = Mine()
    block[0] = F.factorize(nn.Linear(8, 8), min_features=1, latent_features=2)

    with pytest.raises(
        TypeError, match=r"^0 must be .* not a FactorizedLayer.* after gated_linear_un"
    ):
        gate(block)
