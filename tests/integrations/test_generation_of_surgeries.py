"""Law: a changed model generates the same tokens with and without a cache, or refuses the cache."""

from functools import partial

import pytest
import torch

import composable.functional as F
from composable import Event
from tests.support.algorithm_cases import ALGORITHMS
from tests.support.hugging_face import build, tokens
from tests.support.runs import LANGUAGE

pytest.importorskip("transformers")
CACHELESS = {"NGramEmbeddings", "Smear"}


def of_algorithm(case):
    """Return the change of a model by an algorithm."""
    state = LANGUAGE.trainer().state

    def change(model):
        return case.example.apply(Event.INIT, state.evolve(model=model, optimizers=())).model

    return change


METHODS = {"value_residual": lambda: F.value_residual} | {
    case.name: partial(of_algorithm, case)
    for case in ALGORITHMS
    if Event.INIT in case.example.events and case.acts_on(LANGUAGE) and case.name != "NoOpModel"
}  # which generates nothing


def changed(method, family):
    """Change a model, and draw what the method has added."""
    original = build(family, max_position_embeddings=32)
    model = METHODS[method]()(original).eval()
    known, generator = dict(original.named_parameters()), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in known:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.filterwarnings("ignore::composable.functional.NoEffectWarning")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
@torch.no_grad()
def test_generation_with_a_cache_is_that_without_or_is_refused(method, family):
    """Law of methods: A language model that was changed by surgery generates the same tokens with
    and without a cache, or refuses the cache.
    """
    model, ids = changed(method, family), tokens(6)
    options = {"do_sample": False, "max_new_tokens": 6, "min_new_tokens": 6, "eos_token_id": None}
    options["attention_mask"] = torch.ones_like(ids)
    whole = ids
    for _ in range(6):
        whole = torch.cat([whole, model(whole).logits[:, -1:].argmax(-1)], 1)

    assert torch.equal(model.generate(ids, use_cache=False, **options), whole)
    if method not in CACHELESS:
        assert torch.equal(model.generate(ids, use_cache=True, **options), whole)
        return
    with pytest.raises(ValueError, match=r"(past_key_values|cache) must be None"):
        model.generate(ids, use_cache=True, **options)
