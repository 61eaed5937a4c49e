"""Smear and hashed n-grams: their formulas by hand, and boundaries of documents."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import composable.functional as F
from tests.support.models import WORDS, language_model, seeded
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


# --- hashed n-grams ---


def changed(model, **options):
    """Add n-grams with a table that is not zero."""
    return filled(F.ngram_embeddings(model, **{"rows": 64, **options}), "ngrams")


def test_rows_and_signs_are_the_same_in_every_release():
    rows, signs = F.hash_ngrams(torch.tensor([3, 1, 4, 1, 5]), rows=1000, n=3)

    assert rows.tolist() == [[168, 540], [651, 668], [292, 62], [302, 778], [776, 86]]
    assert signs.tolist() == [[-1, 1], [-1, 1], [-1, 1], [-1, -1], [-1, -1]]


def test_ngrams_of_all_pairs_spread_evenly_over_rows_and_signs():
    pairs = torch.cartesian_prod(torch.arange(300), torch.arange(300))

    rows, signs = (part[:, 1, 0] for part in F.hash_ngrams(pairs, rows=900, n=2))

    counts = rows.bincount(minlength=900).double()
    assert ((counts - 100) ** 2 / 100).mean() < 1.2  # 1 for random rows
    assert signs.double().mean().abs() < 0.02
    assert (signs * (1 - 2 * (rows % 2))).double().mean().abs() < 0.02


def test_an_ngram_is_hashed_alike_wherever_it_stands():
    tokens = torch.tensor([[7, 1, 2, 3, 9, 1, 2, 3]])

    rows, _ = F.hash_ngrams(tokens, rows=10**6, n=3)

    assert torch.equal(rows[0, 3], rows[0, 7])
    assert rows[0, 2, 0] == rows[0, 6, 0]


def test_embedding_is_the_sum_of_rows_by_hand():
    tokens, table = torch.tensor([[5, 7, 5]]), seeded(lambda: torch.randn(50, 4))
    rows, signs = F.hash_ngrams(tokens, rows=50, n=3)

    by_hand = sum(signs[..., k, None] * table[rows[..., k]] for k in (0, 1))

    assert_close(F.embed_ngrams(tokens, table, n=3), by_hand)


def test_documents_of_a_row_are_embedded_as_alone():
    packed = F.pack_documents([torch.tensor([5, 6, 5, 6]), torch.tensor([5, 6, 7])], 8)
    tokens, ids = packed["input_ids"], packed["document_ids"]
    table = seeded(lambda: torch.randn(50, 4))

    together = F.embed_ngrams(tokens, table, n=4, document_ids=ids)[0]

    assert torch.equal(together[:4], F.embed_ngrams(tokens[0, :4], table, n=4))
    assert torch.equal(together[4:7], F.embed_ngrams(tokens[0, 4:7], table, n=4))
    assert not torch.equal(together, F.embed_ngrams(tokens, table, n=4)[0])


class Packed(nn.Module):
    """A model that takes boundaries, and calls its embedding twice."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 4)

    def forward(self, input_ids, document_ids=None, position_ids=None, attention_mask=None):
        return self.words(input_ids) + self.words(input_ids)


POSITIONS, NUMBERS = torch.tensor([[0, 1, 0, 1]]), torch.tensor([[1, 1, 2, 2]])
PAIRS = F.document_mask(NUMBERS)
BOUNDARIES = {
    "documents": {"document_ids": NUMBERS},
    "positions": {"position_ids": POSITIONS},
    "positions of three dimensions": {"position_ids": POSITIONS.expand(3, 1, 4)},
    "mask of ints": {"attention_mask": torch.tensor([[0, 0, 1, 1]])},
    "mask of pairs": {"attention_mask": PAIRS},
    "mask of pairs in ints": {"attention_mask": PAIRS[:, 0].long()},
    "added mask of pairs": {
        "attention_mask": torch.zeros(1, 2, 4, 4).masked_fill(~PAIRS, torch.finfo().min)
    },
}


@pytest.mark.parametrize("name", BOUNDARIES)
def test_boundaries_hold_for_the_calls_of_the_embedding_in_one_call_of_the_model(name):
    model, tokens = changed(seeded(Packed)), torch.tensor([[5, 6, 5, 6]])

    bounded = model(tokens, **BOUNDARIES[name])

    assert torch.equal(bounded[:, 2:], model(tokens[:, 2:]))
    assert not torch.equal(model(tokens)[:, 2:], bounded[:, 2:])


def test_a_mask_that_is_no_tensor_is_refused():
    with pytest.raises(TypeError, match="attention_mask must be a tensor, not a dict; pass"):
        changed(seeded(Packed))(torch.tensor([[5, 6]]), attention_mask={"full_attention": None})


def test_a_later_token_changes_no_earlier_output():
    model, tokens = changed(language_model(one_by_one=True), n=4).eval(), torch.arange(5)[None]
    other = tokens.clone()
    other[0, 3] = 6

    assert torch.equal(model(tokens)[..., :3], model(other)[..., :3])
    assert not torch.equal(model(tokens)[..., 4], model(other)[..., 4])


def test_tied_weights_stay_tied_and_train():
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7, bias=False))
    model[1].weight = model[0].weight

    new = changed(model)
    new(torch.arange(5)[None]).square().sum().backward()

    assert new[1].weight is new[0].weight is model[0].weight
    assert new[0].ngrams.weight.grad.abs().sum() > 0


def test_the_default_fills_the_budget():
    new = F.ngram_embeddings(nn.Sequential(nn.Embedding(7, 4)), megabytes=0.01)

    assert new[0].ngrams.weight.shape == (625, 4)  # 16 bytes each


class NanoGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(7, 4), nn.Embedding(5, 4)

    def forward(self, ids):
        return self.wte(ids) + self.wpe(torch.arange(ids.shape[-1]))


def test_one_of_several_embeddings_must_be_named():
    with pytest.raises(ValueError, match=r"target=None must be .* one of wte, wpe; pass target="):
        F.ngram_embeddings(NanoGPT(), rows=8)
    with pytest.raises(ValueError, match=r"target='head' must be the name .* 'wte', 'wpe'"):
        F.ngram_embeddings(NanoGPT(), rows=8, target="head")

    assert hasattr(F.ngram_embeddings(NanoGPT(), rows=8, target="wte").wte, "ngrams")


def test_rejects_other_ngrams_and_a_quantized_table():
    new = F.ngram_embeddings(nn.Sequential(nn.Embedding(7, 4)), rows=8)
    with pytest.raises(ValueError, match="rows=9, n=3 and sparse=False must be 8, 3 and Fal"):
        F.ngram_embeddings(new, rows=9)

    whole = nn.Sequential(nn.Embedding.from_pretrained(torch.ones(7, 4).to(torch.int8)))
    with pytest.raises(ValueError, match=r"0.weight must have a floating-point dtype"):
        F.ngram_embeddings(whole, rows=8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_table_has_the_dtype_of_the_embedding(dtype):
    new = changed(language_model(one_by_one=True, dtype=dtype))

    assert new.words.ngrams.weight.dtype is dtype
    assert new(torch.arange(5)[None]).dtype is dtype


@pytest.mark.parametrize("sparse", [True, False])
def test_gradient_of_the_table_has_the_layout_that_is_asked_for(sparse):
    tokens, table = torch.tensor([[5, 7, 5]]), torch.zeros(50, 4, requires_grad=True)
    F.embed_ngrams(tokens, table, n=3, sparse=sparse).sum().backward()

    model = F.ngram_embeddings(nn.Sequential(nn.Embedding(9, 4)), rows=50, sparse=sparse)
    model(tokens).sum().backward()

    assert table.grad.is_sparse is sparse
    assert model[0].ngrams.weight.grad.is_sparse is sparse
    assert_close(model[0].ngrams.weight.grad.to_dense(), table.grad.to_dense())
