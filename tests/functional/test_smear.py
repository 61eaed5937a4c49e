"""Smear: the formula by hand, and boundaries of documents."""

import copy

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


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5, 4)

    def forward(self, ids, past_key_values=None):
        return self.words(ids)


class Twice(nn.Module):
    """Calls its embedding twice in each call, and then may raise."""

    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, ids, document_ids=None, fails=False):
        outputs = self.inner(ids), self.inner(ids)
        if fails:
            raise ArithmeticError
        return outputs


def test_boundaries_hold_for_one_call_and_in_all_of_it():
    new, ids = smeared(seeded(Twice)), torch.tensor([[1, 2, 3, 4]])
    plain, documents = new(ids)[0], torch.tensor([[0, 0, 1, 1]])

    first, second = new(ids, document_ids=documents)
    assert torch.equal(first, second)
    assert not torch.allclose(first, plain)
    with pytest.raises(ArithmeticError):
        new(ids, document_ids=documents, fails=True)
    assert torch.equal(new.inner(ids), plain)


def test_a_call_that_passes_the_boundaries_by_is_refused():
    new = smeared(seeded(Twice))
    for call in (new.inner.words, copy.deepcopy(new.inner.words), new.inner.forward):
        with pytest.raises(RuntimeError, match="smeared embeddings need the boundaries"):
            call(torch.tensor([[1, 2, 3, 4]]))
