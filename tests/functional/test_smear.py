"""Smear: the formula by hand, boundaries of documents, and models of Hugging Face."""

import pytest
import torch
from torch import nn
from torch.nn.functional import pad
from torch.testing import assert_close

import composable.functional as F
from tests.support.hugging_face import WIDTH, build, tokens
from tests.support.models import language_model, seeded
from tests.support.tiny_llama import llama

X = seeded(lambda: torch.randn(2, 7, 4))
GATE, SCALE = seeded(lambda: (torch.randn(3), torch.randn(1)))


def filled(model, **options):
    """Smear with a gate and a scale that are not zero."""
    new = F.smear(model, **{"channels": 4, **options})
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in new.named_parameters():
            if "smear" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return new


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


def test_new_model_computes_the_same_until_it_is_trained():
    model = language_model(one_by_one=True)
    new, ids = F.smear(model, channels=4), torch.arange(5)[None]

    assert torch.equal(new(ids), model(ids))
    new(ids).square().sum().backward()
    assert new.words.smear_scale.grad.abs() > 0
    assert not torch.equal(filled(model)(ids), model(ids))
    assert F.smear(new, channels=4) is new
    with pytest.raises(ValueError, match="channels=5 must be 4, with which words is converted"):
        F.smear(new, channels=5)


def test_smears_what_ngrams_have_added():
    model = F.ngram_embeddings(language_model(one_by_one=True), rows=16)
    nn.init.normal_(model.words.ngrams.weight)
    new, ids = filled(model), torch.arange(5)[None]
    words = new.words

    expected = F.smear_tokens(model.words(ids), words.smear_gate, words.smear_scale)
    assert_close(words(ids), expected)


MODELS = {
    "gpt2": lambda: build("gpt2", max_position_embeddings=32),
    "llama": llama,
    "bert": lambda: build("bert", max_position_embeddings=32),
}


@pytest.mark.parametrize("family", MODELS)
@torch.no_grad()
def test_positions_and_masks_bound_the_tokens_of_hugging_face(family):
    pytest.importorskip("transformers")
    model, ids, seen = filled(MODELS[family]()), tokens(6), []
    embedding = model.get_input_embeddings()
    embedding.register_forward_hook(lambda module, args, output: seen.append(output))

    model(ids)
    model(ids.view(1, 12), position_ids=torch.arange(6).repeat(2)[None])
    model(pad(ids, (2, 0)), attention_mask=(pad(ids, (2, 0)) > 0).long())

    alone, packed, padded = seen
    assert torch.equal(packed.view_as(alone), alone)
    assert torch.equal(padded[:, 2:], alone)
    assert alone.shape == (2, 6, WIDTH)
    if family == "gpt2":
        assert model.get_output_embeddings().weight is embedding.weight


@torch.no_grad()
def test_generation_passes_whole_rows_and_refuses_a_cache():
    pytest.importorskip("transformers")
    model, ids = filled(MODELS["gpt2"]()), tokens(6)
    options = {"do_sample": False, "max_new_tokens": 5, "min_new_tokens": 5, "eos_token_id": None}
    options["attention_mask"], whole = torch.ones_like(ids), ids
    for _ in range(5):
        whole = torch.cat([whole, model(whole).logits[:, -1:].argmax(-1)], 1)

    assert torch.equal(model.generate(ids, **options), whole)
    with pytest.raises(ValueError, match="past_key_values must be None in a model with smeared"):
        model.generate(ids, use_cache=True, **options)
    with pytest.raises(ValueError, match="inputs_embeds must be None"):
        model(inputs_embeds=torch.zeros(1, 3, WIDTH))
