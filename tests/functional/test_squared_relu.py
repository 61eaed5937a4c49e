"""Squared ReLU: its values, and where it goes."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import composable.functional as F
from tests.support.hugging_face import build, tokens
from tests.support.models import Hidden, seeded


@pytest.mark.parametrize(("slope", "expected"), [(0.0, [0, 0, 9]), (0.5, [1, 0, 9])])
def test_values_are_those_of_the_formula(slope, expected):
    values = F.SquaredReLU(slope)(torch.tensor([-2.0, 0.0, 3.0]))

    assert values.tolist() == expected


@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_gradient_is_that_of_the_formula(slope):
    inputs = torch.tensor([-2.0, -1.0, 0.5, 3.0], dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradcheck(F.SquaredReLU(slope), inputs)


def test_block_is_the_formula_by_hand_also_after_gating():
    block, x = seeded(lambda: Hidden(8)), torch.randn(2, 5, 8)
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
