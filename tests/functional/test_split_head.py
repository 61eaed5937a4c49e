"""Embedding and head: tied like one weight until the split, and apart from then on."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import composable.functional as F
from composable.algorithms import GradientClipping, SplitHead
from tests.support.hugging_face import build, build_class, tokens
from tests.support.models import language_model, weights
from tests.support.outcomes import resumes_exactly
from tests.support.runs import LANGUAGE, adam, sgd


def tied_model():
    model = language_model(one_by_one=True)
    model.score.weight = model.words.weight
    return model


def train(split_at, model=None, duration="3ep", **options):
    algorithms = [SplitHead(split_at), *options.pop("more", [])]
    model = language_model(one_by_one=True) if model is None else model
    options = {"optimizers": adam, "max_duration": "3ep", **options}
    trainer = LANGUAGE.trainer(model, algorithms=algorithms, **options)
    return trainer.fit(duration=duration)


@pytest.mark.parametrize("optimizer", [adam, sgd])
def test_until_the_split_a_run_is_that_of_a_tied_model(optimizer):
    one = LANGUAGE.trainer(tied_model(), optimizers=optimizer, max_duration="2ep").fit()
    two = train("2ep", tied_model(), "2ep", optimizers=optimizer)
    expected, found = weights(one.model), weights(two.model)

    assert torch.equal(found["words.weight"], found["score.weight"])
    for name in expected:
        assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)


def test_states_of_the_optimizer_are_equal_at_the_split_and_the_weights_differ_after_it():
    before, after = train("2ep", duration="2ep"), train("2ep")
    (optimizer,) = before.optimizers
    named = dict(before.model.named_parameters())
    words, score = (optimizer.state[named[f"{name}.weight"]] for name in ("words", "score"))

    assert words["exp_avg"].abs().sum() > 0
    assert all(torch.equal(words[key], score[key]) for key in words)
    model = after.model
    assert not torch.equal(model.words.weight, model.score.weight)
    assert_close(model.words.weight, model.score.weight, rtol=0, atol=0.2)


def test_a_run_that_resumes_before_or_after_the_split_equals_one_that_does_not(tmp_path):
    for batch in (2, 5):
        resumes_exactly(partial(train, "3ba", duration=None), tmp_path / str(batch), batch)


def test_clipping_sees_the_sum():
    clipping = GradientClipping(clipping_type="value", clipping_threshold=1e-3)
    model = train("1dur", more=[clipping]).model

    assert torch.equal(model.words.weight, model.score.weight)


def test_groups_of_different_options_are_refused():
    model = language_model(one_by_one=True)

    def optimizer(parameters):
        groups = [{"params": [p], "lr": 0.1 if i else 0.2} for i, p in enumerate(parameters)]
        return torch.optim.SGD(groups, lr=0.1)

    trainer = LANGUAGE.trainer(model, algorithms=[SplitHead()], optimizers=optimizer)
    with pytest.raises(ValueError, match=r"words\.weight and score\.weight must have .* in lr:"):
        trainer.fit()


def noisy(model):
    """Move all weights, also biases, which start at zero."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return model


@pytest.mark.parametrize("family", ["gpt2", "bert", "roberta", "deberta", "llama"])
def test_models_of_hugging_face_are_split_saved_and_loaded(family, tmp_path):
    pytest.importorskip("transformers")
    model = noisy(build(family, tie_word_embeddings=True))
    new, ids = F.split_head(model), tokens(6)
    embedding, head = new.get_input_embeddings(), new.get_output_embeddings()

    assert head.weight is not embedding.weight
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert model.config.tie_word_embeddings
    assert_close(new(ids).logits, model(ids).logits)
    assert F.split_head(new) is new
    assert all((p.grad is None) != p.requires_grad for p in trained_once(new, ids).parameters())
    with torch.no_grad():
        head.weight.mul_(2)
        if head.bias is not None:
            head.bias.add_(1)
    new.tie_weights()
    new.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    assert_close(loaded(ids).logits, new(ids).logits)
    assert not torch.allclose(loaded(ids).logits, model(ids).logits)


def trained_once(model, ids):
    model(ids).logits.sum().backward()
    return model


def test_embeddings_of_an_encoder_and_a_decoder_stay_tied_and_are_not_saved(tmp_path):
    pytest.importorskip("transformers")
    sizes = {"vocab_size": 9, "d_model": 4, "d_kv": 2, "d_ff": 4, "num_layers": 1, "num_heads": 2}
    new = F.split_head(
        build_class("T5ForConditionalGeneration", **sizes), target="encoder.embed_tokens"
    )

    assert new.encoder.embed_tokens.weight is new.decoder.embed_tokens.weight
    with pytest.raises(RuntimeError, match="from_pretrained would not build this model"):
        new.save_pretrained(tmp_path)


def test_a_head_trains_as_before_and_not_as_the_embedding():
    model = nn.Sequential(nn.Embedding(9, 4).requires_grad_(False), nn.Linear(4, 9))

    assert F.split_head(model)[1].weight.requires_grad
    model[1].weight = model[0].weight
    assert not F.split_head(model)[1].weight.requires_grad


def test_heads_are_found_by_name_tie_or_shape():
    parts = [nn.Embedding(9, 4), nn.Linear(4, 9), nn.Linear(9, 4), nn.Linear(4, 9)]
    model = nn.Sequential(*parts)
    with pytest.raises(ValueError, match=r"head=None must be .* one of 1, 3; pass head='3'"):
        F.split_head(model)
    with pytest.raises(ValueError, match=r"head='2' must be .* of the shape \(9, 4\)"):
        F.split_head(model, head="2")
    assert torch.equal(F.split_head(model, head="1")[1].weight, model[0].weight)
    model[3].weight = model[0].weight
    assert F.split_head(model)[3].weight is not model[3].weight
    with pytest.warns(F.NoEffectWarning, match="split_head found nothing to replace"):
        assert F.split_head(model[2]) is model[2]


def test_sum_is_that_of_the_parameters_that_have_a_gradient():
    grads = {"a": torch.ones(2), "c": torch.zeros(3)}

    assert F.tie_gradients(grads, names=["a", "b"])["b"].tolist() == [1, 1]
    assert F.tie_gradients({"c": grads["c"]}, names=["a", "b"]) == {"c": grads["c"]}
