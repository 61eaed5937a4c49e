"""Surgery of Hugging Face's models with rotary embeddings, RMS norms or gated blocks."""

import math

import pytest
import torch
import transformers
from torch.testing import assert_close

import composable.functional as F
from tests.functional.test_alibi import slopes_of_the_paper

TABLE, HEADS, WIDTH, WORDS, LONG = 8, 4, 16, 17, 20
SIZES = {
    "vocab_size": WORDS,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "max_position_embeddings": TABLE,
    "initializer_range": 0.5,
    "pad_token_id": 0,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 4}
DISTILLED = {"dim": WIDTH, "n_heads": HEADS, "n_layers": 2, "hidden_dim": 24}
FAMILIES = {
    "Llama": ("LlamaForCausalLM", GROUPED),
    "Mistral": ("MistralForCausalLM", GROUPED),
    "Qwen2": ("Qwen2ForCausalLM", {"num_key_value_heads": 2}),
    "Qwen3": ("Qwen3ForCausalLM", GROUPED),
    "GPTNeoX": ("GPTNeoXForCausalLM", {}),
    "XLMRoberta": ("XLMRobertaForMaskedLM", {}),
    "DistilBert": ("DistilBertForMaskedLM", DISTILLED),
}
DECODERS = ["Llama", "Mistral", "Qwen2", "Qwen3", "GPTNeoX"]
GATED = ["Llama", "Mistral", "Qwen2", "Qwen3"]
every = pytest.mark.parametrize("family", FAMILIES)
decoders = pytest.mark.parametrize("family", DECODERS)
implementations = pytest.mark.parametrize("implementation", ["eager", "sdpa"])
NEAR = {"rtol": 1e-4, "atol": 1e-4}


def build(family, implementation="sdpa"):
    """Build a language model of two layers, the same at each call, in evaluation mode."""
    name, options = FAMILIES[family]
    sizes = {k: v for k, v in SIZES.items() if family != "DistilBert" or "num" not in k}
    sizes.pop("hidden_size" if family == "DistilBert" else "", None)
    sizes.pop("intermediate_size" if family == "DistilBert" else "", None)
    config = getattr(transformers, f"{family}Config")(**sizes, **options)
    config._attn_implementation = implementation
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        return getattr(transformers, name)(config).eval()


def tokens(length=LONG, batch=2):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(2, WORDS, (batch, length), generator=generator)


def converted(family, implementation="sdpa"):
    return F.alibi(build(family, implementation), max_sequence_length=2 * TABLE)


# --- linear biases ---


def projections(attention, hidden):
    """Return queries, keys and values by head, before any rotation."""
    if hasattr(attention, "query_key_value"):
        mixed = attention.query_key_value(hidden).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return mixed.chunk(3, dim=-1)
    names = ("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("q_lin", "k_lin", "v_lin")
    names = next(one for one in names if hasattr(attention, one[0]))
    size = WIDTH // HEADS
    parts = [getattr(attention, name)(hidden).unflatten(-1, (-1, size)) for name in names]
    for i, norm in enumerate(("q_norm", "k_norm")):
        if hasattr(attention, norm):
            parts[i] = getattr(attention, norm)(parts[i])
    return [part.transpose(1, 2).repeat_interleave(HEADS // part.shape[2], dim=1) for part in parts]


def by_hand(attention, hidden, causal):
    """Attention with linear biases, written out."""
    query, key, value = projections(attention, hidden)
    scores = query @ key.mT / math.sqrt(WIDTH // HEADS)
    at = torch.arange(hidden.shape[1])
    for head, slope in enumerate(slopes_of_the_paper(HEADS)):
        scores[:, head] -= slope * (at[:, None] - at).abs()
    if causal:
        scores = scores.masked_fill(at > at[:, None], -torch.inf)
    attended = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
    for name in ("o_proj", "dense", "out_lin"):
        if hasattr(attention, name):
            return getattr(attention, name)(attended)
    return attended


@every
@implementations
def test_attention_matches_the_formula(family, implementation):
    model, seen = converted(family, implementation), []

    def keep(module, args, kwargs, outputs):
        seen.append((module, args[0] if args else kwargs["hidden_states"], outputs[0]))

    for module in model.modules():
        if type(module).__name__.startswith("Alibi") and hasattr(module, "config"):
            module.register_forward_hook(keep, with_kwargs=True)
    with torch.no_grad():
        model(tokens())

        assert len(seen) == 2
        for attention, hidden, outputs in seen:
            expected = by_hand(attention, hidden, family in DECODERS)
            assert_close(outputs, expected, rtol=1e-4, atol=1e-5)


@every
@implementations
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_change_the_logits(family, implementation, side):
    model, ids = converted(family, implementation), tokens()
    mask = torch.ones_like(ids)
    mask[1, slice(None, 4) if side == "left" else slice(-4, None)] = 0

    padded = model(ids * mask, attention_mask=mask).logits[1, mask[1].bool()]

    assert_close(padded, model(ids[1:, mask[1].bool()]).logits[0], **NEAR)


@decoders
@implementations
def test_cache_matches_the_whole_sequence(family, implementation):
    model, ids, cache, logits = converted(family, implementation), tokens(), None, []

    for part in ids.split([TABLE, 1, 1, LONG - TABLE - 2], dim=1):
        outputs = model(part, past_key_values=cache, use_cache=True)
        cache, logits = outputs.past_key_values, [*logits, outputs.logits]

    assert_close(torch.cat(logits, 1), model(ids).logits, **NEAR)


@every
def test_position_ids_and_a_second_conversion_change_nothing(family):
    model, ids = converted(family), tokens(6)

    assert F.alibi(model, max_sequence_length=2 * TABLE) is model
    if family != "DistilBert":
        moved = model(ids, position_ids=torch.tensor([[0, 1, 2, 4, 5, 7]])).logits
        real = slice(None) if family == "XLMRoberta" else slice(3)  # a gap can be a new text
        assert_close(moved[:, real], model(ids).logits[:, real])
    assert not any("position_emb" in name for name in model.state_dict())


# --- low-precision norms ---


@pytest.mark.parametrize("family", GATED)
def test_rms_norms_match_the_formula(family):
    model = build(family)
    low = F.low_precision_layernorm(model, precision=torch.bfloat16)
    pairs = zip(model.modules(), low.modules(), strict=True)
    norms = [(old, new) for old, new in pairs if type(old).__name__ == f"{family}RMSNorm"]

    assert len(norms) >= 5
    for old, new in norms:
        old.weight.data.uniform_(0.5, 2.0)
        inputs = torch.randn(3, 5, len(old.weight))
        assert new(inputs).dtype == torch.float32
        assert not torch.equal(new(inputs), old(inputs))
        assert_close(new(inputs), old(inputs), rtol=2e-2, atol=2e-2)
        assert torch.equal(F.low_precision_layernorm(old)(inputs), old(inputs))
    assert low.state_dict().keys() == model.state_dict().keys()


def test_norm_of_t5_is_computed_in_low_precision():
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    norm = T5LayerNorm(6)
    norm.weight.data.uniform_(0.5, 2.0)
    low, inputs = F.low_precision_layernorm(norm), torch.randn(3, 6)

    assert torch.equal(low(inputs), norm(inputs))
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(inputs).dtype == torch.float32
        assert low(inputs).dtype == torch.bfloat16
        assert_close(low(inputs).float(), norm(inputs), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("eps", [None, 1e-3])
def test_rms_norm_of_torch_is_computed_in_the_dtype_of_autocast(eps):
    norm = torch.nn.RMSNorm(6, eps=eps)
    norm.weight.data.uniform_(0.5, 2.0)
    low, inputs = F.low_precision_layernorm(norm), torch.randn(4, 6) * 0.01

    assert torch.equal(low(inputs), norm(inputs))
    with torch.autocast("cpu", torch.bfloat16):
        outputs = low(inputs)
    assert outputs.dtype == torch.bfloat16
    assert_close(outputs.float(), norm(inputs), rtol=2e-2, atol=2e-2)


# --- gated linear units ---


@pytest.mark.parametrize("family", ["GPTNeoX", "XLMRoberta", "DistilBert"])
def test_gated_blocks_match_the_formula(family):
    parts = {
        "GPTNeoX": ("dense_h_to_4h", "act"),
        "XLMRoberta": ("dense", "intermediate_act_fn"),
        "DistilBert": ("lin1", "activation"),
    }
    linear, activation = parts[family]
    model = build(family)
    new = F.gated_linear_units(model, generator=torch.Generator().manual_seed(0))
    found = 0
    for name, old in model.named_modules():
        if hasattr(old, linear) and hasattr(old, activation):
            now, x = new.get_submodule(name), torch.randn(3, 5, WIDTH)
            gated = getattr(now, linear)
            opened = getattr(old, activation)(x @ getattr(old, linear).weight.T)
            assert_close(gated(x), opened * gated.non_gated(x))
            found += 1
    assert found == 2
    new(tokens(6))


@pytest.mark.parametrize("family", GATED)
def test_warning_names_blocks_that_are_gated_already(family):
    with pytest.warns(F.NoEffectWarning, match=f"{family}MLP is gated already"):
        F.gated_linear_units(build(family))


# --- stochastic depth ---


@every
def test_dropped_layers_return_their_inputs(family):
    model, ids = build(family).train(), tokens(6)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    dropped = F.stochastic_depth(model, drop_rate=1.0, drop_distribution="uniform")
    blocks = [m for m in dropped.modules() if type(m).__name__.startswith("Stochastic")]
    seen = []
    for block in blocks:
        block.register_forward_hook(lambda block, args, outputs: seen.append((args[0], outputs)))

    dropped(ids)

    assert len(blocks) == len(seen) == 2
    assert all(torch.equal(inputs, outputs) for inputs, outputs in seen)
    kept = F.stochastic_depth(model, drop_rate=1e-9)
    assert_close(kept(ids).logits, model(ids).logits)
