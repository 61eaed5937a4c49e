"""Value embeddings and the value residual: sums by hand, and models of Hugging Face."""

import pytest
import torch
from torch import nn
from torch.nn.functional import embedding
from torch.testing import assert_close

import composable.functional as F
from tests.support.hugging_face import WIDTH, WORDS, build, llama, recompute_layers, tokens
from tests.support.models import ProjectedAttention, seeded
from tests.support.surgery import filled


def small(count=3):
    parts = [nn.Embedding(9, 8), *(ProjectedAttention(8) for _ in range(count))]
    return nn.Sequential(*parts).double()


def changed(model, **options):
    """Add value embeddings that are not zero."""
    return filled(F.value_embeddings(model, channels=4, **options), "value_embedding")


def test_values_are_the_sums_of_the_formula_and_queries_stay():
    plain, ids = seeded(small), torch.tensor([[3, 1, 3, 8]])
    new, seen = changed(plain), []
    layer = new[2].qkv
    layer.register_forward_hook(lambda module, args, out: seen.append((args[0], out)))
    new(ids)
    inputs, outputs = seen[0]
    expected = nn.functional.linear(inputs, layer.weight, layer.bias)
    table, gate = layer.value_embedding.table, layer.value_embedding.gate
    share = 2 * torch.sigmoid(inputs[..., :4] @ gate)[..., None]
    expected[..., 16:] += share * embedding(ids, table)

    assert_close(outputs, expected)
    assert not layer.value_embedding.trace.kept


def test_tables_are_trained_and_another_width_is_refused():
    new, ids = F.value_embeddings(seeded(small), channels=4), torch.arange(8)[None]

    new(ids).square().sum().backward()
    tables = [p for name, p in new.named_parameters() if name.endswith("table")]
    assert len(tables) == 3
    assert all(table.grad.abs().sum() > 0 for table in tables)
    with pytest.raises(ValueError, match="channels=5 must be those with which the model"):
        F.value_embeddings(new, channels=5)


def test_chosen_layers_alone_have_tables():
    new = changed(seeded(small), layers=(-1, 0))

    assert [hasattr(part.qkv, "value_embedding") for part in new[1:]] == [True, False, True]
    assert torch.isfinite(new(torch.arange(8)[None])).all()


def test_combines_with_other_embeddings_of_the_tokens_and_with_the_value_residual():
    ids, model = torch.arange(8)[None], changed(seeded(small))
    for change in (
        lambda m: F.smear(m, channels=4),
        lambda m: F.ngram_embeddings(m, rows=8),
        lambda m: F.value_residual(m, share=0.0),
    ):
        assert_close(change(model)(ids), model(ids))
        assert_close(changed(change(seeded(small)))(ids), model(ids))


@pytest.mark.parametrize("family", ["gpt2", "bert", "roberta", "llama", "grouped llama"])
def test_models_of_hugging_face_have_tables_of_their_values(family):
    pytest.importorskip("transformers")
    model = build(family)
    new, ids = changed(model), tokens(6)
    shapes = [p.shape for name, p in new.named_parameters() if name.endswith("table")]

    assert shapes == [(WORDS, 4 if "grouped" in family else WIDTH)] * 2
    assert torch.equal(F.value_embeddings(model)(ids).logits, model(ids).logits)
    assert not torch.allclose(new(ids).logits, model(ids).logits)
    with pytest.raises(RuntimeError, match="value_embeddings needs what an earlier layer"):
        new(inputs_embeds=torch.zeros(1, 3, WIDTH))


def test_an_embedding_with_more_rows_than_the_tables_is_refused():
    pytest.importorskip("transformers")
    new = changed(build("llama"))
    new.resize_token_embeddings(WORDS + 3, mean_resizing=False)

    with pytest.raises(ValueError, match=f"have {WORDS} rows, but .* resized to {WORDS + 3}: call"):
        new(tokens(6))


def test_a_model_without_tokens_or_values_warns():
    for model in (nn.Sequential(ProjectedAttention(8)), nn.Sequential(nn.Embedding(9, 8))):
        with pytest.warns(F.NoEffectWarning, match="value_embeddings found nothing to replace"):
            assert F.value_embeddings(model) is model


# --- the residual of values ---


def attention():
    return seeded(lambda: nn.Sequential(*(ProjectedAttention(8) for _ in range(3)))).double()


def test_values_are_mixed_with_those_of_the_first_layer_and_queries_stay():
    new, plain = F.value_residual(attention(), share=0.25), attention()
    start = x = torch.randn(2, 5, 8).double()
    first = plain[0].qkv(x)[..., 16:]
    for i, layer in enumerate(plain):
        query_and_key, values = layer.qkv(x).split([16, 8], -1)
        mixed = values if i == 0 else 0.75 * values + 0.25 * first
        heads = torch.cat([query_and_key, mixed], -1).unflatten(-1, (3, 2, 4))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
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
    for layers in ([ProjectedAttention(8)], [nn.MultiheadAttention(8, 2) for _ in range(2)]):
        with pytest.warns(F.NoEffectWarning, match="value_residual found nothing"):
            F.value_residual(nn.Sequential(*layers))
    with pytest.raises(ValueError, match="values of one stack must have one width"):
        F.value_residual(nn.Sequential(ProjectedAttention(8), ProjectedAttention(4)))
