"""Rotary positions in models of Hugging Face: the formula, caches, packed texts, and padding."""

import pytest
import torch
from torch.testing import assert_close

import composable.functional as F
from tests.support.hugging_face import TABLE, WIDTH, attend, build, cached, record_calls, tokens

pytest.importorskip("transformers")
ENCODERS = ("bert", "roberta", "bert as a decoder", "distilbert")
RELATIVES = pytest.mark.parametrize("family", ENCODERS)
IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["eager", "sdpa"])
NEAR = {"rtol": 1e-4, "atol": 1e-4}


def converted(family="gpt2", implementation="sdpa", **options):
    return F.rotary(build(family, implementation), **options).eval()


@pytest.mark.parametrize("family", ["gpt2", *ENCODERS])
@IMPLEMENTATIONS
@pytest.mark.parametrize("options", [{}, {"interleaved": True, "fraction": 0.5, "base": 50}])
def test_attention_matches_the_formula(family, implementation, options):
    model = converted(family, implementation, **options)
    kinds = ("SelfAttention", "GPT2Attention")
    seen = record_calls(m for m in model.modules() if type(m).__name__.endswith(kinds))

    with torch.no_grad():
        model(tokens())
        how = {"rotation": F.Rotation(**options), "causal": family in ("gpt2", "bert as a decoder")}
        expected = [attend(one, hidden, **how) for one, hidden, _ in seen]

    assert len(seen) == 2
    assert tokens().shape[1] > TABLE
    assert_close([output for *_, output in seen], expected, **NEAR)
    assert not any("wpe" in name or "position_emb" in name for name in model.state_dict())


@pytest.mark.parametrize(
    ("family", "implementation"),
    [("gpt2", "eager"), ("gpt2", "sdpa"), ("bert as a decoder", "sdpa")],
)
def test_cache_gives_the_outputs_of_the_whole_text(family, implementation):
    model, ids = converted(family, implementation), tokens()
    with torch.no_grad():
        whole = model(ids).logits
        first = model(ids[:, :12], use_cache=True)
        rest = model(ids[:, 12:], **cached(first)).logits

    assert_close(torch.cat([first.logits, rest], 1), whole, **NEAR)


def test_padding_on_the_left_changes_nothing():
    model, ids = converted(), tokens(6)
    padded = torch.nn.functional.pad(ids, (3, 0))
    with torch.no_grad():
        alone = model(ids).logits
        for positions in (None, torch.arange(9).sub(3).clamp(0).expand(2, -1)):
            mask = (padded > 0).long()
            logits = model(padded, attention_mask=mask, position_ids=positions).logits
            assert_close(logits[:, 3:], alone, **NEAR)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated")
def test_training_reaches_every_parameter_and_checkpointing_changes_nothing():
    plain = converted().train()
    for module in plain.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    ids, grads = tokens(6), []
    for checkpointing in (False, True):
        if checkpointing:
            plain.gradient_checkpointing_enable()
        plain.zero_grad()
        plain(ids, labels=ids, use_cache=False).loss.backward()
        grads.append({name: p.grad.clone() for name, p in plain.named_parameters()})

    assert all(grad.abs().sum() > 0 for grad in grads[0].values())
    assert_close(grads[0], grads[1])


def test_attention_without_positions_counts_its_cache():
    from transformers import DynamicCache

    attention, cache = converted().transformer.h[0].attn, DynamicCache()
    hidden = torch.randn(2, 6, WIDTH, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = attention(hidden, position_ids=None)[0]
        parts = (part.contiguous() for part in hidden.split(5, 1))
        first, last = (attention(part, cache, position_ids=None)[0] for part in parts)

    assert_close(torch.cat([first, last], 1), whole, **NEAR)


# --- BERT and its relatives ---


@RELATIVES
def test_conversion_of_bert_shares_weights_and_leaves_the_model_alone(family):
    model, ids = build(family), tokens(6)
    with torch.no_grad():
        before = model(ids).logits
        new = F.rotary(model)
        changed = new(ids).logits
        after = model(ids).logits

    assert torch.equal(before, after)
    assert not torch.allclose(before, changed)
    assert F.rotary(new, base=10000.0) is new
    shared = {id(p) for p in model.parameters()}
    assert all(id(p) in shared for p in new.parameters())
    with pytest.raises(ValueError, match="converted"):
        F.alibi(new, max_sequence_length=9)


@RELATIVES
def test_padding_of_bert_changes_nothing(family):
    model, ids = converted(family), tokens(6)
    with torch.no_grad():
        alone = model(ids).logits
        for pad, real in (((3, 0), slice(3, None)), ((0, 3), slice(6))):
            padded = torch.nn.functional.pad(ids, pad)
            logits = model(padded, attention_mask=(padded > 0).long()).logits
            assert_close(logits[:, real], alone, **NEAR)
