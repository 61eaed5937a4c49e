"""Gated linear units and squared ReLU: what a block computes, and how its weights are drawn."""

import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from torch.testing import assert_close

import composable.functional as F
from composable.utils.reproducibility import preserve_rng
from tests.support.hugging_face import build, tokens
from tests.support.models import Hidden
from tests.support.models import seeded as seeded_model
from tests.support.tensors import randn, seeded


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
    return F.gated_linear_units(model, **{"generator": seeded(), **options})


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("act_fn", [None, torch.sigmoid, nn.Softplus()])
def test_matches_the_formula(gated, other, act_fn):
    block, x = Hidden(4), randn(3, 5, 4)

    new = gate(block, act_fn=act_fn, gated_layer_bias=gated, non_gated_layer_bias=other)

    act = nn.GELU() if act_fn is None else act_fn
    opened = act(linear(x, block[0].weight, block[0].bias if gated else None))
    scale = linear(x, new[0].non_gated.weight, new[0].non_gated.bias)
    assert_close(new(x), block[2](opened * scale))
    assert (new[0].non_gated.bias is not None) == other
    assert (new[0].bias is block[0].bias) if gated else (new[0].bias is None)


def test_nested_parts_and_a_function_as_activation_match_the_formula():
    block, x = Deep().eval(), randn(3, 4)

    new = gate(block)

    up, down = block.parts["up"], block.parts["down"]
    scale = linear(x, new.parts["up"].non_gated.weight)
    assert_close(new(x), down(torch.tanh(linear(x, up.weight)) * scale))
    assert set(block.state_dict()) - set(new.state_dict()) == {"parts.up.bias"}
    bias = gate(Deep(bias=False), gated_layer_bias=True).parts["up"].bias
    assert bias.shape == (6,)
    assert 0 < bias.abs().max() <= 0.5  # a missing bias is drawn


def test_generator_determines_new_weights(still_generators):
    with preserve_rng():
        block = nn.Sequential(Hidden(100), Hidden(100))

    one, again, other = (gate(block, generator=seeded(seed)) for seed in (1, 1, 2))

    weights = [block[0].non_gated.weight for block in (*one, again[0], other[0])]
    assert torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[3])
    assert weights[0].shape == (12, 100)
    assert 0.09 < weights[0].abs().max() <= 0.1
    assert abs(weights[0].mean()) < 0.01


def test_activation_module_is_copied_into_each_block():
    act = nn.PReLU()
    model = nn.Sequential(Hidden(4), Hidden(4)).double().eval()

    new = gate(model, act_fn=act)

    weights = [block[0].activation.weight for block in new]
    assert len({id(weight) for weight in (*weights, act.weight)}) == 3
    assert all(weight.dtype == torch.float64 for weight in weights)
    assert not any(module.training for module in new.modules())
    assert act.training


def test_shared_activation_and_tied_weights_stay_shared():
    act, first, second = nn.PReLU(), Hidden(4), Hidden(4)
    first[1] = second[1] = act
    second[0].weight = first[0].weight
    x = randn(2, 4)

    new = gate(nn.Sequential(first, second, act))

    assert new[0][0].activation is new[1][0].activation is new[2]
    assert new[2].weight is act.weight
    assert new[0][0].weight is new[1][0].weight is first[0].weight
    assert new[0][0].non_gated.weight is not new[1][0].non_gated.weight
    assert_close(new(x), act(new[1](new[0](x))))


# --- squared ReLU ---


@pytest.mark.parametrize(("slope", "expected"), [(0.0, [0, 0, 9]), (0.5, [1, 0, 9])])
def test_values_are_those_of_the_formula(slope, expected):
    values = F.SquaredReLU(slope)(torch.tensor([-2.0, 0.0, 3.0]))

    assert values.tolist() == expected


@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_gradient_is_that_of_the_formula(slope):
    inputs = torch.tensor([-2.0, -1.0, 0.5, 3.0], dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradcheck(F.SquaredReLU(slope), inputs)


def test_block_is_the_formula_by_hand_also_after_gating():
    block, x = seeded_model(lambda: Hidden(8)), torch.randn(2, 5, 8)
    squared = F.squared_relu(block)

    assert_close(squared(x), block[2](torch.relu(block[0](x)) ** 2))

    draw = torch.Generator().manual_seed(0)
    gated = F.squared_relu(F.gated_linear_units(block, gated_layer_bias=True, generator=draw))
    by_hand = gated[2](torch.relu(block[0](x)) ** 2 * gated[0].non_gated(x))

    assert_close(gated(x), by_hand)


@pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, nn.TransformerDecoderLayer])
def test_layers_of_torch_compute_alike_in_training_and_in_evaluation(kind):
    layer = kind(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu")
    new, x = F.squared_relu(layer), torch.randn(2, 5, 8)
    inputs = (x,) if kind is nn.TransformerEncoderLayer else (x, x)

    with torch.no_grad():  # the fast path, which knows only ReLU and GELU
        assert_close(new.eval()(*inputs), new.train()(*inputs))
        assert not torch.allclose(new(*inputs), layer(*inputs))


@pytest.mark.parametrize("family", ["gpt2", "bert", "llama"])
def test_models_of_hugging_face_have_one_in_each_block(family):
    pytest.importorskip("transformers")
    model = build(family)
    new = F.squared_relu(model, slope=0.5)

    assert sum(isinstance(module, F.SquaredReLU) for module in new.modules()) == 2
    assert new.state_dict().keys() == model.state_dict().keys()
    assert not torch.equal(new(tokens(6)).logits, model(tokens(6)).logits)
    assert F.squared_relu(new, slope=0.5) is new
    assert F.squared_relu(new) is not new


def test_target_replaces_activations_of_any_model():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.GELU())
    new = F.squared_relu(model, target=nn.ReLU)

    assert [type(module) for module in new[1:]] == [F.SquaredReLU, nn.GELU]
    with pytest.warns(F.NoEffectWarning, match="squared_relu found nothing to replace"):
        assert F.squared_relu(model) is model


@pytest.mark.parametrize("target", [None, nn.GELU])
def test_hooks_of_an_activation_are_kept(target):
    block, called = Hidden(8), []
    block[1].register_forward_hook(lambda *_: called.append("after"))
    block[1].register_forward_pre_hook(lambda *_: called.append("before"))
    new = F.squared_relu(block, target=target)

    new(torch.ones(1, 8))

    assert isinstance(new[1], F.SquaredReLU)
    assert called == ["before", "after"]
