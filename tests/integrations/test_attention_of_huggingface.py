"""Methods that change attention, in models of Hugging Face: each of them, and grouped heads."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

import composable.functional as F
from tests.functional.test_attention_methods import ADDED, CHANGES
from tests.support.hugging_face import WORDS, build, tokens
from tests.support.surgery import filled

pytest.importorskip("transformers")
NEAR = {"rtol": 1e-4, "atol": 1e-4}


llama = partial(build, "llama", hidden_size=16, num_attention_heads=4, num_key_value_heads=2)
"""Four heads, of which two share keys and values."""
DECODERS = {
    "gpt2": lambda: build("gpt2", max_position_embeddings=32),
    "llama": llama,
    "gpt_neox": partial(build, "gpt_neox", hidden_size=16, num_attention_heads=2),
    "bert": lambda: build("bert as a decoder", max_position_embeddings=32),
    "llama in bfloat16": lambda: llama().to(torch.bfloat16),
}
METHODS = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)


def changed(model):
    """Apply all methods that can be combined."""
    for name, change in CHANGES.items():
        if not name.startswith("learned"):
            model = change(model)
    return filled(model, ADDED)


@METHODS
@torch.no_grad()
def test_every_method_acts_on_encoders_and_decoders(change):
    encoders = (
        ()
        if change in (CHANGES["partial_key_offset"], CHANGES["sliding_window"])
        else (build("bert"),)
    )
    for model in (*encoders, DECODERS["gpt2"](), llama()):
        assert not torch.allclose(
            filled(change(model), ADDED)(tokens(8))[0], model(tokens(8))[0], **NEAR
        )


@torch.no_grad()
def test_features_that_are_offset_are_not_rotated():
    model, seen = F.partial_key_offset(llama(), fraction=0.5, every=1), []
    attention = model.model.layers[0].self_attn
    attention.k_proj.register_forward_hook(lambda module, args, output: seen.append(output))
    change, keys = attention.attention_changes.partial_key_offset, []

    class Noting(type(change)):
        def forward(self, attend, call):
            return super().forward(lambda new: keys.append(new.key) or attend(new), call)

    change.__class__ = Noting
    model(tokens(5))

    plain = seen[0].unflatten(-1, (2, 4)).transpose(1, 2)  # before the rotation
    assert_close(keys[0][:, :, 1:, [1, 3]], plain[:, :, :-1, [1, 3]])
    assert not torch.allclose(keys[0][:, :, 1:, [0, 2]], plain[:, :, 1:, [0, 2]])


def test_sliding_windows_of_their_own_are_refused():
    model = build("mistral", sliding_window=4096)
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn must have no sliding window"):
        F.partial_key_offset(model)


@torch.no_grad()
def test_grouped_heads_are_those_of_a_model_that_repeats_them():
    grouped, single = llama(), llama()
    repeated = llama(head_dim=4)
    for ours, theirs in zip(repeated.model.layers, single.model.layers, strict=True):
        attention = ours.self_attn
        attention.num_key_value_groups = 1
        for name in ("k_proj", "v_proj"):
            weight = getattr(theirs.self_attn, name).weight.unflatten(0, (2, -1))
            layer = torch.nn.Linear(16, 16, bias=False)
            layer.weight.copy_(weight.repeat_interleave(2, 0).flatten(0, 1))
            setattr(attention, name, layer)

    assert_close(changed(repeated)(tokens(8)).logits, changed(grouped)(tokens(8)).logits)


def test_other_implementations_are_refused():
    model = changed(build("gpt2", "eager"))
    with pytest.raises(ValueError, match=r"set_attn_implementation\('sdpa'\)"):
        model(tokens(6))
    model.set_attn_implementation("sdpa")

    assert model(tokens(6)).logits.shape == (2, 6, WORDS)


def test_attention_that_normalizes_already_is_skipped():
    model = build("qwen3")
    with pytest.warns(F.NoEffectWarning, match="qk_norm found nothing to replace"):
        assert F.qk_norm(model) is model
