"""Rotary positions in models of Hugging Face: the formula, and the cache."""

import pytest
import torch
from torch.testing import assert_close

import composable.functional as F
from tests.support.hugging_face import TABLE, WIDTH, attend, build, record_calls, tokens

pytest.importorskip("transformers")
ENCODERS = ("bert", "roberta", "bert as a decoder", "distilbert")
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


def test_attention_without_positions_counts_its_cache():
    from transformers import DynamicCache

    attention, cache = converted().transformer.h[0].attn, DynamicCache()
    hidden = torch.randn(2, 6, WIDTH, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = attention(hidden, position_ids=None)[0]
        parts = (part.contiguous() for part in hidden.split(5, 1))
        first, last = (attention(part, cache, position_ids=None)[0] for part in parts)

    assert_close(torch.cat([first, last], 1), whole, **NEAR)
