"""Classes of one's own in the registries of `alibi` and `gated_linear_units`."""

import sys

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import composable.functional as F


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
    return F.gated_linear_units(model, generator=torch.Generator().manual_seed(0))


def register_block(kind, *, linear="0", activation="1"):
    F.register_gated_linear_units(kind, linear=linear, activation=activation)


@pytest.fixture(autouse=True)
def _restore_registries():
    modules = [
        sys.modules[f"composable.functional.{name}"] for name in ("alibi", "gated_linear_units")
    ]
    before = [dict(module.REGISTRY.entries) for module in modules]
    yield
    for module, entries in zip(modules, before, strict=True):
        module.REGISTRY.entries = entries


@pytest.mark.parametrize(
    ("operate", "register", "register_other", "is_first", "is_other"),
    [
        (
            alibi,
            lambda kind: F.register_alibi(kind)(Wrapper),
            lambda kind: F.register_alibi(kind)(lambda module, length: nn.Tanh()),
            lambda new: type(new) is Wrapper,
            lambda new: type(new) is nn.Tanh,
        ),
        (
            gate,
            register_block,
            lambda kind: register_block(kind, linear="2"),
            lambda new: hasattr(new[0], "non_gated"),
            lambda new: hasattr(new[2], "non_gated") and not hasattr(new[0], "non_gated"),
        ),
    ],
)
def test_class_is_found_by_name_and_subclass_by_its_base(
    operate, register, register_other, is_first, is_other
):
    class Child(Mine):
        pass

    register(f"{Mine.__module__}.Mine")
    assert is_first(operate(nn.Sequential(Child()))[0])

    register_other(Child)
    new = operate(nn.Sequential(Child(), Mine()))
    assert is_other(new[0])
    assert is_first(new[1])


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


def test_rejects_conversion_that_returns_no_module():
    F.register_alibi(Mine)(lambda module, length: None)

    with pytest.raises(TypeError, match=r"conversion of .*Mine must return a module, not None"):
        alibi(Mine())
    with pytest.raises(TypeError, match="conversion=3 must be a function"):
        F.register_alibi(Mine)(3)


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
