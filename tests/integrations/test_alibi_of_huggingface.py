"""ALiBi in Hugging Face's models: the formula, whatever the mask, the cache and the way."""

import copy
import math
import pickle

import pytest
import torch
import transformers
from torch import nn
from torch.testing import assert_close

import composable.functional as F
from composable.testing import NoSync
from tests.functional.test_alibi import slopes_of_the_paper

TABLE, LONG, HEADS, WIDTH, WORDS = 8, 20, 3, 12, 17
IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["eager", "sdpa"])
FAMILIES = pytest.mark.parametrize("family", ["gpt2", "bert", "roberta", "bert as a decoder"])
DECODERS = pytest.mark.parametrize("family", ["gpt2", "bert as a decoder"])
PADDINGS = pytest.mark.parametrize("padding", [None, "left", "right"])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def build(family, implementation="sdpa", **options):
    """Build a small model with random weights, large enough for attention to matter."""
    sizes = {
        "vocab_size": WORDS,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "hidden_size": WIDTH,
        "max_position_embeddings": TABLE,
        "initializer_range": 0.5,
        "attn_implementation": implementation,
        "pad_token_id": 0,
        **options,
    }
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        if family == "gpt2":
            config = transformers.GPT2Config(bos_token_id=0, eos_token_id=0, **sizes)
            return transformers.GPT2LMHeadModel(config).eval()
        sizes["intermediate_size"] = 16
        if family == "roberta":
            return transformers.RobertaForMaskedLM(transformers.RobertaConfig(**sizes)).eval()
        if family == "bert":
            return transformers.BertForMaskedLM(transformers.BertConfig(**sizes)).eval()
        return transformers.BertLMHeadModel(
            transformers.BertConfig(is_decoder=True, **sizes)
        ).eval()


def tokens(length=LONG, batch=2):
    return torch.randint(1, WORDS, (batch, length), generator=generator())


def converted(family, implementation="sdpa", **options):
    return F.alibi(build(family, implementation, **options), max_sequence_length=2 * TABLE)


def mask_of(padding, length=LONG):
    if padding is None:
        return None
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, slice(None, 4) if padding == "left" else slice(-4, None)] = 0
    return mask


def attentions(model):
    kinds = ("AlibiGPT2Attention", "AlibiBertSelfAttention", "AlibiRobertaSelfAttention")
    return [module for module in model.modules() if type(module).__name__ in kinds]


def by_hand(attention, hidden, mask, causal):
    """Attention with linear biases, written out."""
    if hasattr(attention, "c_attn"):
        projected = hidden @ attention.c_attn.weight + attention.c_attn.bias
        parts = projected.split(WIDTH, dim=-1)
    else:
        parts = [layer(hidden) for layer in (attention.query, attention.key, attention.value)]
    query, key, value = (p.unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in parts)
    scores = query @ key.mT / math.sqrt(WIDTH // HEADS)
    at = torch.arange(hidden.shape[1])
    for head, slope in enumerate(slopes_of_the_paper(HEADS)):
        scores[:, head] -= slope * (at[:, None] - at).abs()
    if causal:
        scores = scores.masked_fill(at > at[:, None], -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(mask[:, None, None] == 0, -torch.inf)
    attended = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
    return attention.c_proj(attended) if hasattr(attention, "c_proj") else attended


@FAMILIES
@IMPLEMENTATIONS
@PADDINGS
def test_attention_is_that_of_the_formula(family, implementation, padding):
    model, mask = converted(family, implementation), mask_of(padding)
    seen = []
    for attention in attentions(model):
        attention.register_forward_hook(
            lambda module, args, kwargs, outputs: seen.append((module, args, outputs[0])),
            with_kwargs=True,
        )

    with torch.no_grad():
        model(tokens(), attention_mask=mask)
        causal = family in ("gpt2", "bert as a decoder")
        expected = [by_hand(one, args[0], mask, causal) for one, args, _ in seen]

    assert len(seen) == 2
    real = torch.ones(2, LONG).bool() if mask is None else mask.bool()
    for (_, _, outputs), ours in zip(seen, expected, strict=True):
        assert_close(outputs[real], ours[real], rtol=1e-4, atol=1e-5)


@IMPLEMENTATIONS
def test_attention_by_itself_reads_no_mask_as_it_did(implementation):
    attention, hidden = attentions(converted("gpt2", implementation))[0], torch.randn(2, 7, WIDTH)

    outputs, _ = attention(hidden)

    expected = by_hand(attention, hidden, None, causal=implementation == "sdpa")
    assert_close(outputs, expected, rtol=1e-4, atol=1e-5)


@IMPLEMENTATIONS
def test_a_mask_of_numbers_is_added(implementation):
    model, given = converted("gpt2", implementation), torch.zeros(2, 1, LONG, LONG)
    at = torch.arange(LONG)
    given[:, :, at[:, None] < at] = -1e9

    assert_close(model(tokens(), attention_mask=given).logits, model(tokens()).logits)


def test_distances_are_rounded_once_in_low_precision():
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


@DECODERS
@IMPLEMENTATIONS
def test_the_first_logits_of_a_decoder_do_not_depend_on_what_follows(family, implementation):
    model, ids = converted(family, implementation), tokens(5 * TABLE)

    whole = model(ids).logits

    for length in (1, 3, TABLE, TABLE + 1, 2 * TABLE + 1, 4 * TABLE):
        assert_close(model(ids[:, :length]).logits, whole[:, :length], rtol=1e-4, atol=1e-4)


@FAMILIES
@IMPLEMENTATIONS
@pytest.mark.parametrize("padding", ["left", "right"])
def test_where_a_text_stands_says_nothing(family, implementation, padding):
    model, ids, mask = converted(family, implementation), tokens(), mask_of(padding)
    ids = ids * mask  # 0 is RoBERTa's word for padding, by which it finds positions

    padded = model(ids, attention_mask=mask).logits[1, mask[1].bool()]

    alone = model(ids[1:, mask[1].bool()]).logits[0]
    assert_close(padded, alone, rtol=1e-4, atol=1e-4)


@FAMILIES
def test_embeddings_of_positions_add_nothing_any_more(family):
    model, ids = converted(family), tokens(6)

    moved = model(ids, position_ids=torch.arange(6).flip(0)[None] + 1).logits

    if family != "gpt2":  # which takes positions that fall for several texts in one row
        assert torch.equal(moved, model(ids).logits)
    assert not any("wpe" in name or "position_emb" in name for name in model.state_dict())


def test_texts_that_share_a_row_are_apart():
    model, ids = converted("gpt2"), tokens(7, batch=1)

    packed = model(ids, position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2]]), use_cache=False).logits

    assert_close(packed[:, :4], model(ids[:, :4]).logits, rtol=1e-4, atol=1e-4)
    assert_close(packed[:, 4:], model(ids[:, 4:]).logits, rtol=1e-4, atol=1e-4)


@FAMILIES
@IMPLEMENTATIONS
def test_distances_matter_and_to_an_encoder_directions_do_not(family, implementation):
    model, ids = converted(family, implementation), tokens()
    logits = model(ids).logits

    turned, moved = model(ids.flip(1)).logits.flip(1), model(ids.roll(5, 1)).logits.roll(-5, 1)

    assert torch.allclose(turned, logits, atol=1e-3) is (family in ("bert", "roberta"))
    assert not torch.allclose(moved, logits, atol=1e-2)


@DECODERS
@IMPLEMENTATIONS
@pytest.mark.parametrize("steps", [[1] * LONG, [TABLE, 1, 1, LONG - TABLE - 2], [3, LONG - 3]])
def test_a_cache_gives_what_the_whole_text_gives(family, implementation, steps):
    model, ids, cache, logits = converted(family, implementation), tokens(), None, []

    for part in ids.split(steps, dim=1):
        outputs = model(part, past_key_values=cache, use_cache=True)
        cache, logits = outputs.past_key_values, [*logits, outputs.logits]

    assert_close(torch.cat(logits, 1), model(ids).logits, rtol=1e-4, atol=1e-4)


@IMPLEMENTATIONS
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize(("padding", "beams"), [("left", 1), (None, 1), ("left", 2)])
def test_texts_are_generated_as_without_a_cache(implementation, cache, padding, beams):
    model, ids = converted("gpt2", implementation), tokens(6)
    mask = torch.ones_like(ids) if padding is None else mask_of(padding, 6)
    options = {
        "attention_mask": mask,
        "min_new_tokens": LONG,
        "max_new_tokens": LONG,
        "do_sample": False,
        "pad_token_id": 0,
        "num_beams": beams,
    }

    expected = model.generate(ids, use_cache=False, **options)

    cached = {"cache_implementation": "static", "disable_compile": True}
    options |= cached if cache == "static" else {}
    assert torch.equal(model.generate(ids, **options), expected)
    assert expected.shape == (2, 6 + LONG)


@FAMILIES
@IMPLEMENTATIONS
def test_the_model_that_was_given_stays(family, implementation):
    model, ids = build(family, implementation), tokens(6)
    text, keys, before = repr(model), list(model.state_dict()), model(ids).logits

    new = F.alibi(model, max_sequence_length=LONG)
    new(ids)

    assert torch.equal(model(ids).logits, before)
    assert torch.equal(build(family, implementation)(ids).logits, before)
    assert (repr(model), list(model.state_dict())) == (text, keys)
    assert model.config.max_position_embeddings == TABLE
    assert new.config.max_position_embeddings == LONG
    assert not torch.allclose(new(ids).logits, before, atol=1e-2)


@FAMILIES
def test_everything_but_the_table_is_shared(family):
    model = build(family)

    new = F.alibi(model, max_sequence_length=LONG)

    theirs = dict(model.named_parameters(remove_duplicate=False))
    ours = dict(new.named_parameters(remove_duplicate=False))
    (table,) = set(theirs) - set(ours)
    assert table.endswith(("wpe.weight", "position_embeddings.weight"))
    assert all(ours[name] is theirs[name] for name in ours)  # the tied ones too
    assert dict(new.named_buffers()).keys() == dict(model.named_buffers()).keys()


@FAMILIES
@IMPLEMENTATIONS
def test_state_dicts_load_into_a_model_converted_likewise(family, implementation):
    model, fresh = converted(family, implementation), converted(family, implementation)
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.zero_()

    fresh.load_state_dict(model.state_dict())

    assert torch.equal(fresh(tokens()).logits, model(tokens()).logits)


@FAMILIES
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_and_pickles_compute_the_same(family, copied):
    model = converted(family)

    assert torch.equal(copied(model)(tokens()).logits, model(tokens()).logits)


@FAMILIES
def test_twice_is_once_and_another_length_is_refused(family):
    once = converted(family)

    assert F.alibi(once, max_sequence_length=2 * TABLE) is once
    with pytest.raises(ValueError, match=r"=8 must be 16, for which .* is converted already"):
        F.alibi(once, max_sequence_length=TABLE)


@FAMILIES
@IMPLEMENTATIONS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_and_modes_stay(family, implementation, dtype):
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
def test_a_text_of_padding_alone_gives_numbers(family, implementation, dtype, autocast):
    model, mask = converted(family, implementation), torch.ones(2, LONG, dtype=torch.long)
    mask[1] = 0
    with torch.autocast("cpu", dtype, enabled=autocast):
        logits = (model if autocast else model.to(dtype))(tokens(), attention_mask=mask).logits
        logits.sum().backward()

    assert logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@FAMILIES
def test_the_ways_to_compute_attention_agree_and_can_be_changed_afterwards(family):
    model, mask = converted(family, "sdpa"), mask_of("left")
    fast = model(tokens(), attention_mask=mask).logits

    model.set_attn_implementation("eager")
    outputs = model(tokens(), attention_mask=mask, output_attentions=True)

    real = mask.bool()
    assert_close(outputs.logits[real], fast[real], rtol=1e-4, atol=1e-4)
    assert outputs.attentions[1].shape == (2, HEADS, LONG, LONG)


@FAMILIES
@pytest.mark.parametrize("before", [True, False])
def test_a_way_that_takes_no_biases_is_refused(family, before):
    model = build(family) if before else converted(family)
    model.config._attn_implementation_internal = "flash_attention_2"

    with pytest.raises(ValueError, match=r"'flash_attention_2' must be .*implementation\('s"):
        F.alibi(model, max_sequence_length=LONG) if before else model(tokens())


def test_attention_to_another_text_stays():
    options = {"add_cross_attention": True}
    for family in ("gpt2", "bert as a decoder"):
        model = build(family, **options)
        new = F.alibi(model, max_sequence_length=LONG)

        assert len(attentions(new)) == 2
        other = torch.randn(2, 30, WIDTH, generator=generator())
        ids = tokens()
        whole = new(ids, encoder_hidden_states=other).logits
        part = new(ids[:, :9], encoder_hidden_states=other, use_cache=True)
        rest = new(ids[:, 9:], encoder_hidden_states=other, past_key_values=part.past_key_values)
        assert_close(torch.cat([part.logits, rest.logits], 1), whole, rtol=1e-4, atol=1e-4)


def test_embeddings_may_be_given_instead_of_ids():
    for family in ("gpt2", "bert", "roberta"):
        model = converted(family)
        embedded = model.get_input_embeddings()(tokens())
        assert_close(model(inputs_embeds=embedded).logits, model(tokens()).logits)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_types_of_tokens_are_looked_up_as_before(family):
    model, ids = converted(family, type_vocab_size=2), tokens()
    plain = model(ids).logits

    zeros, ones = (model(ids, token_type_ids=torch.full_like(ids, i)).logits for i in (0, 1))

    assert torch.equal(zeros, plain)
    assert not torch.allclose(ones, plain, atol=1e-2)


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_checkpointed_layers_have_the_same_gradients(family):
    grads = []
    for checkpointed in (False, True):
        model = converted(family, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if hasattr(module, "attn_dropout"):
                module.attn_dropout.p = 0.0
        model.train()
        if checkpointed:
            model.activation_checkpointing_enable()
        model(tokens()).logits.square().mean().backward()
        grads.append([p.grad for p in model.parameters() if p.grad is not None])

    assert_close(*grads)


@FAMILIES
@IMPLEMENTATIONS
def test_biases_wait_for_no_device(family, implementation):
    model = converted(family, implementation)
    hidden = torch.randn(2, LONG, WIDTH)
    mask = torch.zeros(2, 1, LONG, LONG)

    with NoSync():
        for attention in attentions(model):
            attention(hidden, attention_mask=mask)
            attention(hidden)


@pytest.mark.compile
@IMPLEMENTATIONS
def test_compiles_into_one_graph(implementation):
    model = converted("gpt2", implementation)
    compiled = torch.compile(model, fullgraph=True, backend="eager")

    outputs = compiled(tokens(), use_cache=False).logits

    assert_close(outputs, model(tokens()).logits)


def test_a_model_without_the_attention_that_goes_with_its_positions_is_refused():
    embeddings = build("bert").bert.embeddings

    with pytest.raises(ValueError, match=r"embeddings of AlibiBertEmbeddings, but no attention"):
        F.alibi(nn.Sequential(embeddings), max_sequence_length=8)
