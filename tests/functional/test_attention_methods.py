"""The methods that change attention: their formulas, in plain blocks, and what they refuse."""

from functools import partial, reduce

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

import composable.functional as F
from composable.functional.layers.attention import AttentionCall
from tests.support.models import Attention, language_model, seeded
from tests.support.surgery import filled

CHANGES = {
    "qk_norm": lambda model: F.qk_norm(model, gain=3.0),
    "attention_output_gate": lambda model: F.attention_output_gate(model, channels=3),
    "exclusive_self_attention": F.exclusive_self_attention,
    "partial_key_offset": lambda model: F.partial_key_offset(model, every=1),
    "sliding_window": lambda model: F.sliding_window(model, window=3),
    "learned exclusive_self_attention": lambda m: F.exclusive_self_attention(m, learned=True),
}
WIDTH, LENGTH, ADDED = 8, 5, "attention_changes"


def block():
    return seeded(lambda: Attention(WIDTH)).double()


def inputs():
    return seeded(lambda: torch.randn(2, LENGTH, WIDTH)).double()


def softmaxed(query, key, scale):
    later = torch.ones(len(query), len(key), dtype=torch.bool).triu(1)
    return (query @ key.mT * scale).masked_fill(later, -torch.inf).softmax(-1)


def by_hand(attention, x, of_head):
    """Concatenate what a function returns for each head of each row, from its q, k, v and x."""
    parts = nn.functional.linear(x, attention.weight, attention.bias).unflatten(-1, (3, 2, -1))
    rows = [
        torch.cat([of_head(h, *parts[row, :, :, h].unbind(1), x[row]) for h in (0, 1)], -1)
        for row in range(len(x))
    ]
    return torch.stack(rows)


def test_scores_of_normalized_queries_and_keys_are_scaled_cosines():
    new = filled(F.qk_norm(block()), ADDED)
    gains = new.attention_changes.qk_norm.gain

    def of_head(h, query, key, value, x):
        query, key = (part / part.norm(dim=-1, keepdim=True) for part in (query, key))
        return softmaxed(query, key, gains[h] * 4**0.5) @ value  # features of size 4

    assert_close(new(inputs()), by_hand(new, inputs(), of_head))


def test_gain_is_fixed_or_a_parameter():
    learned, fixed = (F.qk_norm(block(), gain=3.0, learned=flag) for flag in (True, False))

    assert learned.attention_changes.qk_norm.gain.flatten().tolist() == [3, 3]
    assert not any("qk_norm" in name for name in fixed.state_dict())
    assert torch.equal(learned(inputs()), fixed(inputs()))


def test_gate_is_twice_the_sigmoid_of_the_first_features():
    new = filled(F.attention_output_gate(block(), channels=3), ADDED)
    weights = new.attention_changes.attention_output_gate.gate

    def of_head(h, query, key, value, x):
        gate = 2 * torch.sigmoid(x[:, :3] @ weights[h])
        return gate[:, None] * (softmaxed(query, key, 0.5) @ value)

    assert_close(new(inputs()), by_hand(new, inputs(), of_head))


@pytest.mark.parametrize("learned", [False, True])
def test_component_along_the_own_value_is_removed(learned):
    new = filled(F.exclusive_self_attention(block(), learned=learned), ADDED)
    strength = new.attention_changes.exclusive_self_attention.strength

    def of_head(h, query, key, value, x):
        output = softmaxed(query, key, 0.5) @ value
        share = torch.tanh(strength[h]).squeeze() if learned else 1
        return torch.stack(
            [y - share * (y @ v) / (v @ v) * v for y, v in zip(output, value, strict=True)]
        )

    assert_close(new(inputs()), by_hand(new, inputs(), of_head))


@pytest.mark.parametrize(("fraction", "moved"), [(0.5, [1, 3]), (0.9, [1, 3]), (0.3, [1, 3])])
def test_last_features_of_each_half_of_a_key_are_those_of_the_token_before(fraction, moved):
    new = F.partial_key_offset(block(), fraction=fraction)

    def of_head(h, query, key, value, x):
        key = key.clone()
        key[1:, moved] = key[:-1, moved].clone()
        return softmaxed(query, key, 0.5) @ value

    assert_close(new(inputs()), by_hand(new, inputs(), of_head))


def band(window):
    distances = torch.arange(LENGTH).unsqueeze(-1) - torch.arange(LENGTH)
    return (distances >= 0) & (distances < window)


@pytest.mark.parametrize("window", range(1, 8))
def test_a_token_attends_to_the_last_tokens(window):
    new, plain = F.sliding_window(block(), window=window), block()

    def of_head(h, query, key, value, x):
        scores = (query @ key.mT / 2).masked_fill(~band(window), -torch.inf)
        return scores.softmax(-1) @ value

    x = inputs().requires_grad_()
    outputs, expected = new(x), by_hand(plain, x, of_head)

    assert_close(outputs, expected)
    gradients = (torch.autograd.grad(one.sin().sum(), x)[0] for one in (outputs, expected))
    assert_close(*gradients)


@pytest.mark.parametrize("window", [1, 2, 4])
def test_pieces_and_masks_of_any_kind_give_the_same(window):
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    added = torch.zeros(LENGTH, LENGTH, dtype=torch.float64).masked_fill(~causal, -torch.inf)
    x = inputs().unflatten(-1, (2, -1)).transpose(1, 2)

    class Bare(nn.Module):
        heads = 2

        def forward(self, x, **options):
            return scaled_dot_product_attention(x, x, x, **options)

    F.register_attention(Bare, heads="heads")
    new = F.sliding_window(Bare(), window=window)

    expected = scaled_dot_product_attention(x, x, x, band(window))
    for options in ({"is_causal": True}, {"attn_mask": causal}, {"attn_mask": added}):
        assert_close(new(x, **options), expected)
    assert_close(new(x[0], is_causal=True), expected[0])
    assert_close(new(x[None], is_causal=True), expected[None])


def test_tokens_that_a_mask_excludes_do_not_count():
    class Masked(nn.Module):
        heads = 1

        def forward(self, x, mask):
            return scaled_dot_product_attention(x, x, x, mask)

    F.register_attention(Masked, heads="heads")
    x = inputs().unsqueeze(1)
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    mask[:, 2] = False  # row 2 is cut off
    mask[2, 2] = True

    new = F.sliding_window(Masked(), window=2)(x, mask)

    assert_close(new[:, :, 3], F.sliding_window(Masked(), window=3)(x, mask & band(3))[:, :, 3])
    assert_close(
        new[:, :, 3:4], scaled_dot_product_attention(x[:, :, 3:4], x[:, :, [1, 3]], x[:, :, [1, 3]])
    )


def test_windows_are_replaced_and_long_and_short_in_turn():
    model = nn.Sequential(*(Attention(4) for _ in range(4)))

    new = F.sliding_window(model, window=6, short_window=3)
    again = F.sliding_window(new, window=None, short_window=4, every=4)

    def lengths(model):
        return [one.attention_changes.sliding_window.length for one in model]

    assert lengths(new) == [3, 6, 3, 6]
    assert lengths(again) == [4, 4, 4, None]
    assert F.sliding_window(new, window=6, short_window=3) is new


def test_every_fourth_block_is_offset():
    model = F.partial_key_offset(nn.Sequential(*(Attention(4) for _ in range(6))))

    assert [i for i, one in enumerate(model) if hasattr(one, "attention_changes")] == [0, 4]


@pytest.mark.parametrize("first", ["rotary", "partial_key_offset"])
def test_features_that_are_rotated_are_not_offset(first):
    def both(fraction):
        steps = [lambda m: F.rotary(m, fraction=fraction), F.partial_key_offset]
        model = nn.Sequential(block())
        for step in steps if first == "rotary" else reversed(steps):
            model = step(model)
        return model[0].attention_changes.partial_key_offset

    assert both(0.5).offset(4, torch.device("cpu")).tolist() == [False, False, True, True]
    with pytest.raises(ValueError, match=r"fraction=0.5 must be at most 0.0, the share of .* 0"):
        both(1.0)


def test_methods_combine_in_any_order_and_after_alibi():
    ids, alibi = torch.arange(5)[None], partial(F.alibi, max_sequence_length=9)
    changes = [change for name, change in CHANGES.items() if not name.startswith("learned")]
    forth, back = (
        reduce(lambda model, change: change(model), order, language_model(one_by_one=True))
        for order in ([*changes, alibi], [alibi, *reversed(changes)])
    )

    assert torch.equal(forth(ids), back(ids))
    assert forth.state_dict().keys() == back.state_dict().keys()


# --- bad input ---


class Forgetful(Attention):
    def forward(self, x):
        return x


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_block_that_calls_no_attention_raises(change):
    with pytest.raises(ValueError, match=r"must call scaled_dot_product_attention once .* not 0"):
        change(Forgetful(WIDTH))(torch.zeros(1, 2, WIDTH))


def test_rejects_other_hyperparameters_and_too_many_channels():
    new = F.qk_norm(block())
    with pytest.raises(
        ValueError, match=r"qk_norm\(gain=2, learned=True\) must be qk_norm\(gain=1"
    ):
        F.qk_norm(new, gain=2)
    with pytest.raises(ValueError, match="channels=12 must be at most 8, the width"):
        F.attention_output_gate(block())(inputs())


class TwoHeads(Attention):
    heads = 3

    def forward(self, x):
        x = x.unflatten(-1, (2, -1)).transpose(1, 2)
        return scaled_dot_product_attention(x, x, x)


def test_rejects_a_wrong_number_of_heads():
    with pytest.raises(ValueError, match=r"heads=3, which is registered .* must be .* heads, 2"):
        F.qk_norm(TwoHeads(WIDTH))(inputs())
    wrong = block()
    wrong.heads = "two"
    with pytest.raises(ValueError, match="number of its heads in the attribute heads, not 'two'"):
        F.qk_norm(wrong)


def test_conversion_that_replaces_the_class_of_changed_attention_is_refused():
    class Own(Attention):
        pass

    @F.register_alibi(Own)
    def convert(attention, max_sequence_length):
        attention.__class__ = Own
        return attention

    changed = F.qk_norm(Own(WIDTH))
    with pytest.raises(ValueError, match=r"must keep the class .*; call alibi first"):
        F.alibi(changed, max_sequence_length=9)


def test_the_own_value_behind_a_cache_is_found_by_a_mask_of_any_shape():
    value, query = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 2, 4)
    mask = torch.ones(2, 5, dtype=torch.bool).tril(2)  # the last place is still free
    mask[:, 4] = False

    for given in (mask, mask.expand(3, 2, 5), mask.expand(2, 1, 2, 5)):
        own = AttentionCall(query, value, value, given, False, {}, query).own_values()
        assert_close(own, value[:, :, 2:4])
