"""The laws of gated linear units: what a block computes, and from where its weights come."""

import copy
import pickle
import sys

import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from torch.testing import assert_close

import composable.functional as F
from tests.support.runs import Hidden

BIASES = pytest.mark.parametrize("gated", [False, True])
OTHER_BIASES = pytest.mark.parametrize("other", [False, True])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def randn(*shape):
    return torch.randn(shape, generator=generator())


class Deep(nn.Module):
    """A feed-forward block whose parts lie deeper, and whose activation is a function."""

    def __init__(self, bias=True):
        super().__init__()
        self.parts = nn.ModuleDict({"up": nn.Linear(4, 6, bias), "down": nn.Linear(6, 4)})
        self.drop, self.act = nn.Dropout(0.5), torch.tanh

    def forward(self, x):
        return self.parts["down"](self.drop(self.act(self.parts["up"](x))))


F.register_gated_linear_units(Deep, linear="parts.up", activation="act")


def gate(model, **options):
    return F.gated_linear_units(model, **{"generator": generator(), **options})


@BIASES
@OTHER_BIASES
@pytest.mark.parametrize("act_fn", [None, torch.sigmoid, nn.Softplus()])
def test_a_block_is_that_of_the_formula(gated, other, act_fn):
    block, x = Hidden(4), randn(3, 5, 4)

    new = gate(block, act_fn=act_fn, gated_layer_bias=gated, non_gated_layer_bias=other)

    act = nn.GELU() if act_fn is None else act_fn
    opened = act(linear(x, block[0].weight, block[0].bias if gated else None))
    scale = linear(x, new[0].non_gated.weight, new[0].non_gated.bias)
    assert_close(new(x), block[2](opened * scale))
    assert (new[0].non_gated.bias is not None) == other
    assert (new[0].bias is block[0].bias) if gated else (new[0].bias is None)


def test_a_block_with_its_parts_further_down_and_a_function_as_activation():
    block, x = Deep().eval(), randn(3, 4)

    new = gate(block)

    up, down = block.parts["up"], block.parts["down"]
    scale = linear(x, new.parts["up"].non_gated.weight)
    assert_close(new(x), down(torch.tanh(linear(x, up.weight)) * scale))
    assert block.act is torch.tanh
    assert type(up) is nn.Linear


def test_a_bias_that_was_not_there_is_drawn():
    block = Deep(bias=False)

    new = gate(block, gated_layer_bias=True).parts["up"]

    assert new.bias.shape == (6,)
    assert 0 < new.bias.abs().max() <= 0.5


def test_keys_stay_but_for_the_old_bias():
    block = nn.Sequential(Hidden(4), Hidden(4))

    new = gate(block)

    old, keys = set(block.state_dict()), set(new.state_dict())
    assert old - keys == {"0.0.bias", "1.0.bias"}
    assert keys - old == {"0.0.non_gated.weight", "1.0.non_gated.weight"}
    assert all(new.get_parameter(key) is block.get_parameter(key) for key in keys & old)


def test_new_weights_are_drawn_from_the_generator_as_those_of_a_linear_layer(still_generators):
    with torch.random.fork_rng():
        block = nn.Sequential(Hidden(100), Hidden(100))

    one, again, other = (gate(block, generator=generator(seed)) for seed in (1, 1, 2))

    weights = [block[0].non_gated.weight for block in (*one, again[0], other[0])]
    assert torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[3])
    assert weights[0].shape == (12, 100)
    assert 0.09 < weights[0].abs().max() <= 0.1
    assert abs(weights[0].mean()) < 0.01


def test_a_module_as_activation_is_copied_into_each_block():
    act = nn.PReLU()
    model = nn.Sequential(Hidden(4), Hidden(4)).double().eval()

    new = gate(model, act_fn=act)

    weights = [block[0].activation.weight for block in new]
    assert weights[0] is not weights[1]
    assert act.weight not in set(new.parameters())
    assert all(weight.dtype == torch.float64 for weight in weights)
    assert not any(module.training for module in new.modules())
    assert act.training


def test_blocks_that_share_an_activation_leave_it_to_others():
    act = nn.PReLU()
    first, second = Hidden(4), Hidden(4)
    first[1] = second[1] = act
    model = nn.Sequential(first, second, act)
    x = randn(2, 4)

    new = gate(model)

    assert new[0][0].activation is new[1][0].activation is new[2]
    assert new[2].weight is act.weight
    assert_close(new(x), act(new[1](new[0](x))))


def test_a_block_in_two_places_stays_one_and_twice_is_once():
    block = Hidden(4)
    new = gate(nn.Sequential(block, nn.ReLU(), block))

    assert new[0] is new[2]
    assert gate(new, act_fn=torch.tanh) is new


def test_weights_that_two_blocks_share_stay_shared():
    first, second = Hidden(4), Hidden(4)
    second[0].weight = first[0].weight

    new = gate(nn.Sequential(first, second))

    assert new[0][0].weight is new[1][0].weight is first[0].weight
    assert new[0][0].non_gated.weight is not new[1][0].non_gated.weight


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_and_pickles_compute_the_same(copied):
    new, x = gate(Hidden(4)), randn(3, 4)

    assert torch.equal(copied(new)(x), new(x))


class Mlp(nn.Sequential):
    pass


@pytest.fixture
def register():
    registry = sys.modules["composable.functional.gated_linear_units"].REGISTRY
    before = dict(registry.entries)
    yield F.register_gated_linear_units
    registry.entries = before


def test_a_class_is_found_by_its_name_and_a_subclass_by_its_base(register):
    class Child(Mlp):
        pass

    register(f"{Mlp.__module__}.Mlp", linear="0", activation="1")
    new = gate(nn.Sequential(Child(nn.Linear(2, 3), nn.Tanh())))
    assert hasattr(new[0][0], "non_gated")

    register(Child, linear="2", activation="1")
    new = gate(nn.Sequential(Child(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))))
    assert not hasattr(new[0][0], "non_gated")
    assert hasattr(new[0][2], "non_gated")


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        (("5", "1"), ValueError, "Mlp has no part '5', which is registered .* names of its parts"),
        (("0.up", "1"), ValueError, "Mlp has no part '0.up', which is registered"),
        (("0", "act"), ValueError, "Mlp has no part 'act', which is registered for it"),
        (("1", "0"), TypeError, "block.1 must be a torch.nn.Linear .* not a Tanh"),
        (("2", "1"), ValueError, "block.2 is lazy and its channels are not known yet"),
    ],
)
def test_a_block_that_is_not_as_it_was_registered_is_refused(register, names, error, message):
    register(Mlp, linear=names[0], activation=names[1])
    block = Mlp(nn.Linear(2, 3), nn.Tanh(), nn.LazyLinear(3))
    with pytest.raises(error, match=message):
        gate(nn.ModuleDict({"block": block}))


def test_a_block_that_was_factorized_says_what_comes_first(register):
    register(Mlp, linear="0", activation="1")
    block = F.factorize(Mlp(nn.Linear(8, 8), nn.Tanh()), min_features=1, latent_features=2)

    with pytest.raises(
        TypeError, match=r"^0 must be .* not a FactorizedLayer.* after gated_linear_un"
    ):
        gate(block)


def test_a_model_without_blocks_that_are_known_is_reported():
    model = nn.Linear(2, 2)
    with pytest.warns(F.NoEffectWarning, match=r"BertIntermediate.*GPT2MLP.* add others wi"):
        assert gate(model) is model


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "Mlp"}, "kind='Mlp' must be a class of modules, or its full name"),
        ({"kind": int}, "kind=<class 'int'> must be a class of modules"),
        ({"linear": 0}, "linear=0 must be the name of a part of the block"),
        ({"activation": ""}, "activation='' must be the name of a part of the block"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_is_registered_is_checked(register, arguments, message):
    with pytest.raises(TypeError, match=message):
        register(**{"kind": Mlp, "linear": "0", "activation": "1", **arguments})
