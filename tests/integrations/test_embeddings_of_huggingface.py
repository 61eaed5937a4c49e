"""N-grams and smear in models of Hugging Face: generation, packing, padding, what is refused."""

import pytest
import torch
from torch import nn
from torch.nn.functional import pad

import composable.functional as F
from tests.support.hugging_face import WIDTH, WORDS, build, build_class, llama, tokens
from tests.support.surgery import filled

pytest.importorskip("transformers")


def t5():
    """Build an encoder and a decoder, whose embeddings are tied to one that is not called."""
    sizes = {"vocab_size": WORDS, "d_model": WIDTH, "d_kv": 4, "d_ff": 16, "num_layers": 1}
    return build_class(
        "T5ForConditionalGeneration",
        **{**sizes, "num_heads": 3, "decoder_start_token_id": 1, "eos_token_id": 0},
    )


MODELS = {
    "llama in bfloat16": lambda: llama().to(torch.bfloat16),
    "gpt2": lambda: build("gpt2", max_position_embeddings=32),
    "llama": llama,
    "bert": lambda: build("bert as a decoder", max_position_embeddings=32),
}
METHODS = {
    "ngrams": lambda model: F.ngram_embeddings(model, rows=64),
    "smear": lambda model: F.smear(model, channels=4),
}


@pytest.fixture(params=MODELS)
def family(request):
    return request.param


@pytest.fixture(params=METHODS)
def model(family, request):
    return filled(METHODS[request.param](MODELS[family]()), "ngrams", "smear")


@torch.no_grad()
def test_positions_and_masks_bound_the_tokens_that_are_embedded_together(model):
    seen, ids = [], tokens(6)
    embedding = model.get_input_embeddings()
    embedding.register_forward_hook(lambda module, args, output: seen.append(output))

    model(ids)
    model(ids.view(1, 12), position_ids=torch.arange(6).repeat(2)[None])
    model(pad(ids, (2, 0)), attention_mask=(pad(ids, (2, 0)) > 0).long())

    alone, packed, padded = seen
    assert torch.equal(packed.view_as(alone), alone)
    assert torch.equal(padded[:, 2:], alone)


def test_refuses_embeddings_without_tokens(model):
    with pytest.raises(ValueError, match=r"inputs_embeds must be None .* pass input_ids"):
        model(inputs_embeds=torch.zeros(1, 3, WIDTH))


def test_the_original_keeps_its_cache_and_weights_stay_tied():
    original = MODELS["gpt2"]()
    new = F.ngram_embeddings(original, rows=64)

    assert original.config.use_cache
    assert not new.config.use_cache
    assert new.get_output_embeddings().weight is original.get_input_embeddings().weight
    assert isinstance(new.get_input_embeddings(), nn.Embedding)


def test_embedding_that_an_encoder_and_a_decoder_share_is_not_the_one_that_is_called():
    with pytest.raises(ValueError, match=r"one of encoder\.embed_tokens, decoder\.embed_tokens;"):
        F.ngram_embeddings(t5(), rows=64)
    with pytest.raises(ValueError, match=r"target='shared' must be an embedding that is called"):
        F.ngram_embeddings(t5(), rows=64, target="shared")


@pytest.mark.parametrize("part", ["encoder", "decoder"])
@torch.no_grad()
def test_each_part_of_an_encoder_decoder_model_can_have_ngrams(part):
    model = F.ngram_embeddings(t5(), rows=64, target=f"{part}.embed_tokens")
    layer = model.get_submodule(part).embed_tokens.ngrams
    layer.weight.copy_(torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(0)))
    ids, made = tokens(6), torch.ones(2, 1, dtype=torch.long)
    options = {"do_sample": False, "max_new_tokens": 5, "min_new_tokens": 5, "eos_token_id": None}

    for _ in range(5):
        logits = model(input_ids=ids, decoder_input_ids=made).logits
        made = torch.cat([made, logits[:, -1:].argmax(-1)], 1)

    assert not torch.equal(logits, t5()(input_ids=ids, decoder_input_ids=made[:, :-1]).logits)
    assert torch.equal(model.generate(ids, **options), made)
    with pytest.raises(ValueError, match=r"(past_key_values|cache) must be None"):
        model.generate(ids, use_cache=True, **options)
    padded = pad(ids, (0, 3))
    mask = (padded > 0).long()
    assert torch.equal(model.generate(padded, attention_mask=mask, **options), made)
