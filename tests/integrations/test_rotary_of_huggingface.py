"""Rotary positions in GPT-2: the formula, caches, positions of packed texts, and padding."""

import pytest
import torch
from torch.testing import assert_close

import composable.functional as F
from tests.support.hugging_face import HEADS, TABLE, WIDTH, build, tokens

pytest.importorskip("transformers")
IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["eager", "sdpa"])
NEAR = {"rtol": 1e-4, "atol": 1e-4}


def converted(implementation="sdpa", **options):
    return F.rotary(build("gpt2", implementation), **options).eval()


def by_hand(attention, hidden, rotation):
    """Attention with rotated queries and keys, written out."""
    projected = hidden @ attention.c_attn.weight + attention.c_attn.bias
    query, key, value = (
        part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in projected.split(WIDTH, -1)
    )
    scores = rotation(query) @ rotation(key).mT / (WIDTH // HEADS) ** 0.5
    causal = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(causal, -torch.inf).softmax(-1)
    return attention.c_proj((weights @ value).transpose(1, 2).flatten(2))


@IMPLEMENTATIONS
@pytest.mark.parametrize("options", [{}, {"interleaved": True, "fraction": 0.5, "base": 50}])
def test_attention_matches_the_formula(implementation, options):
    model = converted(implementation, **options)
    seen = []
    for block in model.transformer.h:
        block.attn.register_forward_hook(
            lambda module, args, kwargs, outputs: seen.append((module, args[0], outputs[0])),
            with_kwargs=True,
        )

    with torch.no_grad():
        model(tokens())  # more than the table has
        expected = [by_hand(one, hidden, F.Rotation(**options)) for one, hidden, _ in seen]

    assert len(seen) == 2
    assert tokens().shape[1] > TABLE
    assert_close([output for *_, output in seen], expected, **NEAR)


@IMPLEMENTATIONS
def test_cache_gives_the_outputs_of_the_whole_text(implementation):
    model, ids = converted(implementation), tokens()
    with torch.no_grad():
        whole = model(ids).logits
        first = model(ids[:, :12], use_cache=True)
        rest = model(ids[:, 12:], past_key_values=first.past_key_values).logits

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
        whole = attention(hidden)[0]
        first, last = (attention(part.contiguous(), cache)[0] for part in hidden.split(5, 1))

    assert_close(torch.cat([first, last], 1), whole, **NEAR)


# --- BERT and its relatives ---

ENCODERS = ("bert", "roberta", "bert as a decoder", "distilbert")
RELATIVES = pytest.mark.parametrize("family", ENCODERS)


def relative(family, implementation="sdpa", **options):
    return F.rotary(of_family(family, implementation), **options).eval()


def of_family(family, implementation="sdpa"):
    if family != "distilbert":
        return build(family, implementation)
    import transformers

    config = transformers.DistilBertConfig(
        vocab_size=17, n_layers=2, n_heads=HEADS, dim=WIDTH, hidden_dim=16,
        max_position_embeddings=TABLE, initializer_range=0.5, pad_token_id=0,
        attn_implementation=implementation,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        return transformers.DistilBertForMaskedLM(config).eval()


def attention_by_hand(attention, hidden, rotation, causal):
    names = (
        ("q_lin", "k_lin", "v_lin") if hasattr(attention, "q_lin") else ("query", "key", "value")
    )
    query, key, value = (
        torch.nn.functional.linear(hidden, layer.weight, layer.bias)
        .unflatten(-1, (HEADS, -1))
        .transpose(1, 2)
        for layer in (getattr(attention, name) for name in names)
    )
    scores = rotation(query) @ rotation(key).mT / (WIDTH // HEADS) ** 0.5
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    outputs = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
    return attention.out_lin(outputs) if hasattr(attention, "out_lin") else outputs


@RELATIVES
@IMPLEMENTATIONS
@pytest.mark.parametrize("options", [{}, {"interleaved": True, "fraction": 0.5, "base": 50}])
def test_attention_of_bert_matches_the_formula(family, implementation, options):
    model, seen = relative(family, implementation, **options), []
    for module in model.modules():
        if type(module).__name__.endswith("SelfAttention"):
            module.register_forward_hook(
                lambda module, args, kwargs, outputs: seen.append(
                    (module, (*args, *kwargs.values())[0], outputs[0])
                ),
                with_kwargs=True,
            )

    with torch.no_grad():
        model(tokens())  # more than the table has
        rotation, causal = F.Rotation(**options), family.endswith("decoder")
        expected = [attention_by_hand(one, hidden, rotation, causal) for one, hidden, _ in seen]

    assert len(seen) == 2
    assert_close([output for *_, output in seen], expected, **NEAR)
    assert not any("position_emb" in name for name in model.state_dict())


@RELATIVES
def test_conversion_of_bert_shares_weights_and_leaves_the_model_alone(family):
    model, ids = of_family(family), tokens(6)
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


def test_cache_of_a_bert_decoder_gives_the_outputs_of_the_whole_text():
    model, ids = relative("bert as a decoder"), tokens()
    with torch.no_grad():
        whole = model(ids).logits
        first = model(ids[:, :12], use_cache=True)
        rest = model(ids[:, 12:], past_key_values=first.past_key_values).logits

    assert_close(torch.cat([first.logits, rest], 1), whole, **NEAR)


@RELATIVES
def test_padding_of_bert_changes_nothing(family):
    model, ids = relative(family), tokens(6)
    with torch.no_grad():
        alone = model(ids).logits
        for pad, real in (((3, 0), slice(3, None)), ((0, 3), slice(6))):
            padded = torch.nn.functional.pad(ids, pad)
            logits = model(padded, attention_mask=(padded > 0).long()).logits
            assert_close(logits[:, real], alone, **NEAR)
