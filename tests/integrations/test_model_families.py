"""Surgery of Hugging Face's models with RMS norms, gated blocks, or layers to drop."""

from functools import partial

import pytest
import torch
from torch.nn.functional import linear as linear_of
from torch.testing import assert_close

import composable.functional as F
from tests.support.hugging_face import WIDTH, build, tokens
from tests.support.tensors import seeded

pytest.importorskip("transformers")
GATED = {
    "grouped llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
}
"""Families, and the names of their classes."""
PARTS = {
    "gpt2": ("c_fc", "act"),
    "bert": ("dense", "intermediate_act_fn"),
    "gpt_neox": ("dense_h_to_4h", "act"),
    "xlm-roberta": ("dense", "intermediate_act_fn"),
    "distilbert": ("lin1", "activation"),
}
"""The first layer and the activation of a feed-forward block."""

# --- low-precision norms ---


@pytest.mark.parametrize("family", GATED)
def test_rms_norms_match_the_formula(family):
    model = build(family)
    low = F.low_precision_layernorm(model, precision=torch.bfloat16)
    pairs = zip(model.modules(), low.modules(), strict=True)
    norms = [(old, new) for old, new in pairs if type(old).__name__ == f"{GATED[family]}RMSNorm"]

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


@pytest.mark.parametrize(("family", "parts"), PARTS.items(), ids=PARTS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("other", [False, True])
def test_gated_blocks_match_the_formula(family, parts, bias, other):
    linear, activation = parts
    model, generator = build(family), seeded()
    blocks = {
        name: block
        for name, block in model.named_modules()
        if hasattr(block, linear) and hasattr(block, activation)
    }
    for block in blocks.values():
        torch.nn.init.normal_(getattr(block, linear).bias, generator=generator)
    biases = {"gated_layer_bias": bias, "non_gated_layer_bias": other}
    new = F.gated_linear_units(model, **biases, generator=generator)
    new(tokens(6))

    assert len(blocks) == 2
    for name, old in blocks.items():
        now, x = new.get_submodule(name), torch.randn(3, 5, WIDTH, generator=generator)
        first, second = getattr(old, linear), getattr(now, linear).non_gated
        weight = first.weight if family == "gpt2" else first.weight.T
        opened = getattr(old, activation)(x @ weight + (first.bias if bias else 0.0))
        gated = opened * linear_of(x, second.weight, second.bias)
        assert (second.bias is not None) == other
        assert_close(getattr(now, linear)(x), gated)
        found = now(x)
        # The rest of the block is as before.
        first.register_forward_hook(lambda *_, value=gated: value)
        getattr(old, activation).register_forward_hook(lambda _, args, output: args[0])
        assert_close(found, old(x))
        assert "non_gated" in repr(now)


def test_gated_blocks_go_together_with_alibi():
    model, ids = build("gpt2"), tokens(10)
    gate, alibi = F.gated_linear_units, partial(F.alibi, max_sequence_length=40)
    one = alibi(gate(model, generator=seeded()))
    other = gate(alibi(model), generator=seeded())

    assert torch.equal(one(ids).logits, other(ids).logits)


@pytest.mark.parametrize("family", GATED)
def test_warning_names_blocks_that_are_gated_already(family):
    with pytest.warns(F.NoEffectWarning, match=f"{GATED[family]}MLP is gated already"):
        F.gated_linear_units(build(family))


# --- stochastic depth ---


@pytest.mark.parametrize("family", [*GATED, "gpt_neox", "xlm-roberta", "distilbert"])
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
