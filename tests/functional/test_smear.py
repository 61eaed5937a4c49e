"""Smear: the formula by hand, and boundaries of documents."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import composable.functional as F
from tests.support.models import language_model, seeded
from tests.support.surgery import filled

X = seeded(lambda: torch.randn(2, 7, 4))
GATE, SCALE = seeded(lambda: (torch.randn(3), torch.randn(1)))


def smeared(model):
    return filled(F.smear(model, channels=4), "smear")


def test_each_token_gets_a_share_of_the_previous_one():
    result = F.smear_tokens(X, GATE, SCALE)

    for t in range(1, 7):
        gate = torch.sigmoid(X[:, t, :3] @ GATE)[:, None]
        assert_close(result[:, t], X[:, t] + SCALE * gate * X[:, t - 1])
    assert torch.equal(result[:, 0], X[:, 0])


def test_documents_of_a_row_are_smeared_as_alone():
    ids = torch.tensor([[1, 1, 1, 2, 3, 3, 3]])
    result = F.smear_tokens(X, GATE, SCALE, document_ids=ids)

    for part in (slice(0, 3), slice(3, 4), slice(4, 7)):
        assert_close(result[:, part], F.smear_tokens(X[:, part], GATE, SCALE))


@pytest.mark.parametrize("length", [0, 1])
def test_rows_without_a_previous_token_stay(length):
    assert torch.equal(F.smear_tokens(X[:, :length], GATE, SCALE), X[:, :length])


def test_scale_is_trained_and_another_width_is_refused():
    new, ids = F.smear(language_model(one_by_one=True), channels=4), torch.arange(5)[None]

    new(ids).square().sum().backward()
    assert new.words.smear_scale.grad.abs() > 0
    with pytest.raises(ValueError, match="channels=5 must be 4, with which words is converted"):
        F.smear(new, channels=5)


def test_smears_what_ngrams_have_added():
    model = F.ngram_embeddings(language_model(one_by_one=True), rows=16)
    nn.init.normal_(model.words.ngrams.weight)
    new, ids = smeared(model), torch.arange(5)[None]
    words = new.words

    expected = F.smear_tokens(model.words(ids), words.smear_gate, words.smear_scale)
    assert_close(words(ids), expected)
