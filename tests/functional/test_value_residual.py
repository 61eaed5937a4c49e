"""Value residual: the sum by hand, and models of Hugging Face."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import composable.functional as F
from tests.support.hugging_face import WIDTH, build, llama, recompute_layers, tokens
from tests.support.models import ProjectedAttention, seeded


def attention():
    return seeded(lambda: nn.Sequential(*(ProjectedAttention(8) for _ in range(3)))).double()


def test_values_are_the_sums_of_the_formula_and_queries_stay():
    new, plain = F.value_residual(attention(), share=0.25), attention()
    x, made = torch.randn(2, 5, 8).double(), []
    for i, layer in enumerate(plain):
        query_and_key, values = layer.qkv(x).split([16, 8], -1)
        made.append(values)
        mixed = values if i == 0 else 0.75 * values + 0.25 * made[0]
        heads = torch.cat([query_and_key, mixed], -1).unflatten(-1, (3, 2, 4))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        if i == 0:
            start = x
        x = attended.transpose(1, 2).flatten(2)

    assert_close(new(start), x)


def test_share_of_zero_changes_nothing_until_it_is_trained():
    new, x = F.value_residual(attention(), share=0.0), torch.randn(2, 5, 8).double()

    assert_close(new(x), attention()(x))
    new(x).sum().backward()
    assert all(p.grad.abs().sum() > 0 for name, p in new.named_parameters() if "scales" in name)


@pytest.mark.parametrize("family", ["gpt2", "bert", "roberta", "llama", "grouped llama"])
def test_models_of_hugging_face_mix_the_values_of_the_second_layer(family):
    pytest.importorskip("transformers")
    model = build(family)
    new = F.value_residual(model)
    (name,) = new.state_dict().keys() - model.state_dict().keys()
    layer = new.get_submodule(name.removesuffix(".value_residual.scales"))
    seen = []
    layer.value_residual.register_forward_hook(lambda m, args, out: seen.append((*args, out)))
    logits = new(tokens(6)).logits

    assert ".1." in name
    assert seen[0][0].shape == (2, 6, 4 if "grouped" in family else WIDTH)
    assert not torch.allclose(seen[0][0], seen[0][1])
    assert not torch.allclose(logits, model(tokens(6)).logits)
    assert not layer.value_residual.trace.kept


def test_recomputed_layers_are_refused():
    pytest.importorskip("transformers")
    new = F.value_residual(llama()).train()
    recompute_layers(new)
    with pytest.raises(RuntimeError, match="value_residual needs what an earlier layer"):
        new(tokens(6)).logits.sum().backward()


def test_one_layer_alone_warns_and_widths_must_be_equal():
    with pytest.warns(F.NoEffectWarning, match="value_residual found nothing"):
        F.value_residual(nn.Sequential(ProjectedAttention(8)))
    with pytest.warns(F.NoEffectWarning, match="value_residual found nothing"):
        F.value_residual(nn.Sequential(nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 2)))
    with pytest.raises(ValueError, match="values of one stack must have one width"):
        F.value_residual(nn.Sequential(ProjectedAttention(8), ProjectedAttention(4)))
