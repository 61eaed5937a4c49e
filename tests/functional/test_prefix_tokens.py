"""Prefix tokens: the table, and the loss as that of two targets."""

from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import composable.functional as F
from composable.algorithms import PrefixTokens
from tests.support.runs import LANGUAGE, make_trainer

WORDS = ["a", "b", "ab", "abba", "abbab", "c", "bc", None, "", "ab"]
PREFIXES = F.prefix_tokens(WORDS)


def test_prefix_is_the_longest_other_token_with_which_a_token_begins():
    assert PREFIXES.tolist() == [0, 1, 0, 2, 3, 5, 1, 7, 8, 0]
    encoded = [None if one is None else one.encode() for one in WORDS]
    assert F.prefix_tokens(encoded).equal(PREFIXES)


def test_prefixes_of_a_trained_vocabulary_are_those_of_a_search():
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(["the theory of these others, then and there"] * 9, 300, 2)
    words = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]

    for i, prefix in enumerate(F.prefix_tokens(words).tolist()):
        others = [one for one in words if words[i].startswith(one) and one != words[i]]
        assert words[prefix] == max(others, key=len, default=words[i])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_loss_is_the_sum_of_two_cross_entropies(reduction):
    logits = torch.randn(3, 10, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[4, 3, -100, 7], [0, 2, 6, 9], [-100, 1, 5, 8]])
    shorter = torch.tensor([[3, 2, -100, 7], [0, 0, 1, 0], [-100, 1, 5, 8]])
    options = {"reduction": reduction}

    loss = F.prefix_token_loss(logits, targets, PREFIXES, weight=0.5, **options)

    expected = cross_entropy(logits, targets, **options)
    assert_close(loss, expected + 0.5 * cross_entropy(logits, shorter, **options))


@pytest.mark.parametrize("mean_over", [None, "tokens"])
@pytest.mark.parametrize("split", [{"grad_accum": 3}, {"microbatch_size": 1}])
def test_loss_of_a_whole_is_that_of_its_parts(mean_over, split):
    loss_fn = partial(F.prefix_token_loss, prefixes=torch.arange(7) // 2)
    options = {"loss_fn": loss_fn, "loss_mean_over": mean_over, "max_duration": "2ep"}
    whole, parts = (
        LANGUAGE.trainer(LANGUAGE.model(one_by_one=True), **options, **how).fit()
        for how in ({}, split)
    )

    assert_close(whole.loss, parts.loss)
    assert_close(whole.model.state_dict(), parts.model.state_dict())


def test_weight_falls_to_zero_at_the_end():
    weights, prefixes = [], torch.tensor([0, 0, 1])

    def keep(event, state, logger):
        if event.name == "BEFORE_BACKWARD":
            pair = state.targets if isinstance(state.targets, F.MixedTargets) else None
            targets = state.targets if pair is None else pair.targets
            own = cross_entropy(state.outputs, targets)
            shorter = cross_entropy(state.outputs, F.prefix_targets(targets, prefixes))
            weights.append(((state.loss - own) / shorter).item())

    make_trainer(
        algorithms=PrefixTokens(prefixes, weight=0.4, end=2 / 3), callbacks=keep, max_duration="6ba"
    ).fit()

    assert weights == pytest.approx([0.4, 0.3, 0.2, 0.1, 0.0, 0.0], abs=1e-5)


def test_model_that_computes_its_own_loss_is_refused():
    hugging_face = pytest.importorskip("tests.support.hugging_face")
    model, ids = hugging_face.build("gpt2"), hugging_face.tokens(4, 6)
    prefixes = torch.zeros(hugging_face.WORDS).long()

    with pytest.raises(TypeError, match=r"PrefixTokens"):
        make_trainer(
            model,
            [{"input_ids": ids, "labels": ids}],
            loss_fn=None,
            algorithms=PrefixTokens(prefixes),
        ).fit()
