"""ALiBi in Hugging Face's models: the formula for each mask, cache and implementation."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import composable.functional as F
from composable.testing import NoSync
from tests.functional.test_alibi import slopes_of_the_paper
from tests.support import hugging_face
from tests.support.hugging_face import (
    HEADS,
    TABLE,
    WIDTH,
    attend,
    build,
    cached,
    mask_of,
    record_calls,
    tokens,
)
from tests.support.tensors import seeded

LONG = 20
NEAR = {"rtol": 1e-4, "atol": 1e-4}
IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["eager", "sdpa"])
FAMILIES = pytest.mark.parametrize("family", hugging_face.FAMILIES)
DECODERS = pytest.mark.parametrize("family", ["gpt2", "bert as a decoder"])
CAUSAL = ["gpt2", "bert as a decoder", "grouped llama", "mistral", "qwen2", "qwen3", "gpt_neox"]
ALL = pytest.mark.parametrize("family", [*CAUSAL, "bert", "roberta", "xlm-roberta", "distilbert"])
PADDINGS = pytest.mark.parametrize("padding", [None, "left", "right"])


def converted(family, implementation="sdpa", **options):
    return F.alibi(build(family, implementation, **options), max_sequence_length=2 * TABLE)


def attentions(model):
    return [
        module
        for module in model.modules()
        if type(module).__name__.startswith("Alibi")
        and hasattr(module, "config")
        and not hasattr(module, "word_embeddings")
    ]


def by_hand(attention, hidden, mask, causal):
    """Attention with linear biases, written out."""
    at, slopes = torch.arange(hidden.shape[1]), torch.tensor(slopes_of_the_paper(HEADS))
    bias = -slopes[:, None, None] * (at[:, None] - at).abs()
    if mask is not None:
        bias = bias.masked_fill(mask[:, None, None] == 0, -torch.inf)
    return attend(attention, hidden, causal=causal, bias=bias)


@ALL
@IMPLEMENTATIONS
@PADDINGS
def test_attention_matches_the_formula(family, implementation, padding):
    model, mask = converted(family, implementation), mask_of(padding)
    seen = record_calls(attentions(model))

    with torch.no_grad():
        model(tokens(), attention_mask=mask)
        causal = family in CAUSAL
        expected = [by_hand(one, hidden, mask, causal) for one, hidden, _ in seen]

    assert len(seen) == 2
    real = torch.ones(2, LONG).bool() if mask is None else mask.bool()
    for (_, _, outputs), ours in zip(seen, expected, strict=True):
        assert_close(outputs[real], ours[real], rtol=1e-4, atol=1e-5)


@IMPLEMENTATIONS
def test_attention_without_a_mask_is_not_masked_by_eager(implementation):
    attention, hidden = attentions(converted("gpt2", implementation))[0], torch.randn(2, 7, WIDTH)

    outputs, _ = attention(hidden)

    expected = by_hand(attention, hidden, None, causal=implementation == "sdpa")
    assert_close(outputs, expected, rtol=1e-4, atol=1e-5)


def test_biases_are_rounded_once_in_low_precision():
    model = converted("gpt2", "eager", num_attention_heads=16, hidden_size=16).bfloat16()
    masks = []
    attention = attentions(model)[0]
    plain = type(attention).__mro__[2]
    ids = tokens(600, batch=1)

    with pytest.MonkeyPatch.context() as patch:
        forward = plain.forward
        patch.setattr(
            plain,
            "forward",
            lambda self, x, **kwargs: (
                masks.append(kwargs["attention_mask"]) or forward(self, x, **kwargs)
            ),
        )
        model(ids)

    exact = F.alibi_bias(16, 600).tril().bfloat16()
    assert torch.equal(masks[0][0].tril(), exact)


@ALL
def test_position_embeddings_are_not_added(family):
    model, ids = converted(family), tokens(6)

    assert F.alibi(model, max_sequence_length=2 * TABLE) is model
    assert not any("wpe" in name or "position_emb" in name for name in model.state_dict())
    if family == "distilbert":  # which takes no positions
        return
    moved = model(ids, position_ids=torch.tensor([[0, 1, 2, 4, 5, 7]])).logits
    real = slice(3) if family in CAUSAL else slice(None)  # a gap can be a new text
    assert_close(moved[:, real], model(ids).logits[:, real])


@FAMILIES
def test_length_is_that_of_the_config_and_another_one_is_rejected(family):
    model = build(family)

    new = F.alibi(model, max_sequence_length=LONG)

    assert model.config.max_position_embeddings == TABLE
    assert new.config.max_position_embeddings == LONG
    with pytest.raises(ValueError, match=r"=8 must be 20, with which .* is converted already"):
        F.alibi(new, max_sequence_length=TABLE)


@FAMILIES
@IMPLEMENTATIONS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_low_precision_is_close_to_float64(family, implementation, dtype):
    model = build(family, implementation).to(dtype).train()
    new = F.alibi(model, max_sequence_length=LONG)
    exact = converted(family, implementation).to(dtype).double()

    assert all(module.training for module in new.modules())
    outputs = new.eval()(tokens(), attention_mask=mask_of("left")).logits

    expected = exact(tokens(), attention_mask=mask_of("left")).logits
    assert outputs.dtype == dtype
    assert all(p.dtype == dtype for p in new.parameters())
    real = mask_of("left").bool()
    error = (outputs - expected)[real].abs().max() / expected.abs().max()
    assert error < 4 * torch.finfo(dtype).eps ** (1 if dtype == torch.float64 else 0.6)


@FAMILIES
@IMPLEMENTATIONS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_sequence_of_padding_gives_finite_values(family, implementation, dtype, autocast):
    model, mask = converted(family, implementation), torch.ones(2, LONG, dtype=torch.long)
    mask[1] = 0
    with torch.autocast("cpu", dtype, enabled=autocast):
        logits = (model if autocast else model.to(dtype))(tokens(), attention_mask=mask).logits
        logits.sum().backward()

    assert logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@FAMILIES
@pytest.mark.parametrize("before", [True, False])
def test_rejects_implementation_without_biases(family, before):
    model = build(family) if before else converted(family)
    model.config._attn_implementation_internal = "flash_attention_2"

    with pytest.raises(ValueError, match=r"'flash_attention_2' must be .*implementation\('s"):
        F.alibi(model, max_sequence_length=LONG) if before else model(tokens())


@DECODERS
def test_cross_attention_is_not_converted(family):
    new = converted(family, add_cross_attention=True)
    other = torch.randn(2, 30, WIDTH, generator=seeded())
    ids = tokens()

    whole = new(ids, encoder_hidden_states=other).logits
    part = new(ids[:, :9], encoder_hidden_states=other, use_cache=True)
    rest = new(ids[:, 9:], encoder_hidden_states=other, **cached(part))

    assert len(attentions(new)) == 2
    assert_close(torch.cat([part.logits, rest.logits], 1), whole, **NEAR)


def test_rejects_position_embeddings_without_attention():
    embeddings = build("bert").bert.embeddings

    with pytest.raises(ValueError, match=r"embeddings of AlibiBertEmbeddings, but no attention"):
        F.alibi(nn.Sequential(embeddings), max_sequence_length=8)


@FAMILIES
def test_takes_embeddings_and_token_types(family):
    model, ids = converted(family, **{} if family == "gpt2" else {"type_vocab_size": 2}), tokens()
    plain = model(ids).logits

    assert_close(model(inputs_embeds=model.get_input_embeddings()(ids)).logits, plain)
    if family != "gpt2":
        zeros, ones = (model(ids, token_type_ids=torch.full_like(ids, i)).logits for i in (0, 1))
        assert torch.equal(zeros, plain)
        assert not torch.allclose(ones, plain, atol=1e-2)


@FAMILIES
@IMPLEMENTATIONS
def test_floating_point_mask_is_added_without_synchronizing(family, implementation):
    attention = attentions(converted(family, implementation))[0]
    hidden, at = torch.randn(2, LONG, WIDTH, generator=seeded()), torch.arange(LONG)
    mask = torch.zeros(2, 1, LONG, LONG).masked_fill(at[:, None] < at, -1e9)

    with NoSync():
        outputs = attention(hidden, attention_mask=mask)[0]
        attention(hidden)

    assert_close(outputs, by_hand(attention, hidden, None, causal=True), rtol=1e-4, atol=1e-5)


@FAMILIES
def test_attention_implementation_can_be_changed(family):
    model, mask = converted(family, "sdpa"), mask_of("left")
    fast = model(tokens(), attention_mask=mask).logits

    model.set_attn_implementation("eager")
    outputs = model(tokens(), attention_mask=mask, output_attentions=True)

    assert_close(outputs.logits[mask.bool()], fast[mask.bool()], **NEAR)
    assert outputs.attentions[1].shape == (2, HEADS, LONG, LONG)
