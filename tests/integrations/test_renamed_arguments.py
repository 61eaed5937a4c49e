"""Laws of calls of Transformers, whose arguments change names and places between versions."""

import inspect
from functools import partial

import pytest
import torch
from torch.testing import assert_close

import composable.functional as F
from tests.support.hugging_face import WIDTH, attend, build, record_calls, tokens

pytest.importorskip("transformers")
CLASSES = {"gpt2": "GPT2Attention", "bert as a decoder": "BertSelfAttention"}
FAMILIES = pytest.mark.parametrize("family", CLASSES)
POSITIONS = {"alibi": partial(F.alibi, max_sequence_length=20), "rotary": F.rotary}
OF_ATTENTION = pytest.mark.parametrize("method", POSITIONS)
OF_EMBEDDING = {
    "smear": partial(F.smear, channels=4),
    "ngrams": partial(F.ngram_embeddings, rows=64),
}


def cache_name(forward):
    parameters = inspect.signature(forward).parameters.values()
    return next(one.name for one in parameters if "Cache" in str(one.annotation))


@pytest.fixture
def attention_with(monkeypatch):
    """Return an attention whose class has another forward method, which a function makes."""

    def build_one(family, forward_of):
        modules = build(family).modules()
        attention = next(one for one in modules if type(one).__name__ == CLASSES[family])
        kind = type(attention)
        monkeypatch.setattr(kind, "forward", forward_of(kind.forward))
        return attention

    return build_one


def renamed(base):
    from transformers import Cache

    def forward(self, hidden_states, keys: Cache | None = None, attention_mask=None, **others):
        others |= {cache_name(base): keys, "attention_mask": attention_mask}
        return base(self, hidden_states, **others)

    return forward


def without_cache(base):
    return lambda self, hidden_states, attention_mask=None, **others: base(self, hidden_states)


def without_mask(base):
    from transformers import Cache

    def forward(self, hidden_states, keys: Cache | None = None, mask=None, **others):
        return base(self, hidden_states)

    return forward


@FAMILIES
@OF_ATTENTION
@pytest.mark.parametrize("place", ["by position", "by name"])
@torch.no_grad()
def test_cache_is_found_by_its_type_in_whatever_argument(method, family, place, attention_with):
    """Law of methods: A cache of Transformers is found in whatever argument it is passed."""
    from transformers import DynamicCache

    attention = POSITIONS[method](attention_with(family, renamed))
    generator = torch.Generator().manual_seed(0)
    hidden, cache = torch.randn(2, 6, WIDTH, generator=generator), DynamicCache()
    how = {
        "by position": ((cache,), {}),
        "by name": ((), {"keys": cache}),
    }[place]
    whole = attention(hidden, position_ids=None)[0]
    parts = [part.contiguous() for part in hidden.split(5, 1)]
    last = [attention(part, *how[0], position_ids=None, **how[1])[0] for part in parts][-1]

    assert_close(last, whole[:, 5:], rtol=1e-4, atol=1e-4)


@FAMILIES
@OF_ATTENTION
def test_known_attention_without_a_cache_is_refused(method, family, attention_with):
    with pytest.raises(TypeError, match=r"Attention\.forward must take a Cache, and takes hid"):
        POSITIONS[method](attention_with(family, without_cache))


def test_attention_without_a_mask_that_takes_biases_is_refused(attention_with):
    with pytest.raises(TypeError, match="must take 'attention_mask', and takes hidden_states, key"):
        POSITIONS["alibi"](attention_with("gpt2", without_mask))


@torch.no_grad()
def test_rotary_gpt2_takes_the_positions_of_its_model_or_refuses_to_count():
    model, at = F.rotary(build("gpt2")), torch.arange(0, 12, 2)[None]
    seen = record_calls(one.attn for one in model.transformer.h)
    model(tokens(6), position_ids=at, attention_mask=torch.ones(2, 6))

    turn = partial(F.Rotation(), positions=at)
    for attention, hidden, outputs in seen:
        assert_close(outputs, attend(attention, hidden, causal=True, rotation=turn))
    with pytest.raises(TypeError, match=r"RotaryGPT2Attention must be called with position_ids"):
        model.transformer.h[0].attn(torch.zeros(1, 2, WIDTH))


@pytest.mark.parametrize("method", OF_EMBEDDING)
@torch.no_grad()
def test_embedding_of_earlier_tokens_refuses_a_cache_of_any_name(method):
    from transformers import DynamicCache, GPT2LMHeadModel

    class Renamed(GPT2LMHeadModel):
        def forward(self, input_ids, keys=None, attention_mask=None, **others):
            return super().forward(input_ids, **{cache_name(GPT2LMHeadModel.forward): keys})

    model = build("gpt2")
    model.__class__ = Renamed
    new, ids = OF_EMBEDDING[method](model), tokens(6)
    new(ids)
    for call in (partial(new, ids, DynamicCache()), partial(new, ids, keys=DynamicCache())):
        with pytest.raises(ValueError, match="keys must be None in a model with "):
            call()
    with pytest.raises(ValueError, match=r"use_cache must be None .* use_cache=False\) does"):
        new(ids, use_cache=True)


def test_partial_key_offset_refuses_an_attention_whose_rotation_it_cannot_find(monkeypatch):
    model = F.partial_key_offset(build("llama"), fraction=0.25, every=1)
    attention = model.model.layers[0].self_attn
    rotation = model.model.rotary_emb(torch.zeros(1, 2, WIDTH), torch.arange(2)[None])
    with pytest.raises(TypeError, match=r"position_embeddings, .* pass it by name"):
        attention(torch.zeros(1, 2, WIDTH), rotation)

    original = build("llama")
    monkeypatch.setattr(
        type(original.model.layers[0].self_attn), "forward", lambda self, hidden, turn: hidden
    )
    with pytest.raises(TypeError, match=r"LlamaAttention.forward must take 'position_embeddings'"):
        F.partial_key_offset(original, fraction=0.25, every=1)
