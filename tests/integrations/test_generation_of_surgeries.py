"""Laws of changed language models: caches, generation, padding, packed texts, recomputation."""

from functools import partial

import pytest
import torch
from torch.nn.functional import pad
from torch.testing import assert_close

import composable.functional as F
from composable import Event
from composable.utils.reproducibility import seed_context
from tests.integrations.test_attention_of_huggingface import DECODERS, changed
from tests.support.algorithm_cases import ALGORITHMS
from tests.support.campaign import drawn
from tests.support.hugging_face import (
    TABLE,
    build,
    cached,
    mask_of,
    recompute_layers,
    tokens,
)
from tests.support.runs import LANGUAGE

pytest.importorskip("transformers")
LONG = 20
IMPLEMENTATIONS = ("eager", "sdpa")
CAUSAL = ["gpt2", "bert as a decoder", "grouped llama", "mistral", "qwen2", "qwen3", "gpt_neox"]
ALL = [*CAUSAL, "bert", "roberta", "xlm-roberta", "distilbert"]
CHANGES = {
    "alibi": partial(F.alibi, max_sequence_length=2 * TABLE),
    "rotary": F.rotary,
    "attention": changed,  # by all methods of attention
}


def changed_by(change, family, implementation="sdpa"):
    if change == "attention":
        return changed(DECODERS[family]())
    return CHANGES[change](build(family, implementation)).eval()


def near(family):
    return {"rtol": 0.1, "atol": 0.2} if "bfloat16" in family else {"rtol": 1e-4, "atol": 1e-4}


CACHED = [
    *(("alibi", family, how) for family in CAUSAL for how in IMPLEMENTATIONS),
    *(("rotary", "gpt2", how) for how in IMPLEMENTATIONS),
    ("rotary", "bert as a decoder", "sdpa"),
    *(("attention", family, "sdpa") for family in DECODERS),
]
STEPS = [[1] * LONG, [TABLE, 1, 1, LONG - TABLE - 2], [3, LONG - 3]]


@pytest.mark.parametrize(("change", "family", "implementation"), CACHED)
@torch.no_grad()
def test_a_cache_gives_the_outputs_of_the_whole_text(change, family, implementation):
    model, ids = changed_by(change, family, implementation), tokens(LONG)
    whole = model(ids).logits
    for steps in STEPS:
        cache, logits = {}, []
        for part in ids.split(steps, dim=1):
            outputs = model(part, use_cache=True, **cache)
            cache, logits = cached(outputs), [*logits, outputs.logits]

        assert_close(torch.cat(logits, 1), whole, **near(family))


GIVEN, NOT_GIVEN = True, False
PADDED = [
    *(("alibi", family, how, NOT_GIVEN) for family in ALL for how in IMPLEMENTATIONS),
    *(
        ("rotary", family, "sdpa", NOT_GIVEN)
        for family in ("gpt2", "bert", "roberta", "bert as a decoder", "distilbert")
    ),
    ("rotary", "gpt2", "sdpa", GIVEN),
    *(("attention", family, "sdpa", GIVEN) for family in ("gpt2", "llama")),
]


@pytest.mark.parametrize(("change", "family", "implementation", "positions"), PADDED)
@pytest.mark.parametrize("padding", ["left", "right"])
@torch.no_grad()
def test_padding_changes_nothing(change, family, implementation, positions, padding):
    model, mask = changed_by(change, family, implementation), mask_of(padding)
    ids = tokens(LONG) * mask  # 0 is RoBERTa's word for padding, by which it finds positions
    given = {"position_ids": mask.cumsum(1).sub(1).clamp(0)} if positions else {}

    padded = model(ids, attention_mask=mask, **given).logits[1, mask[1].bool()]

    alone = model(ids[1:, mask[1].bool()]).logits[0]
    assert_close(padded, alone, **near(family))


@pytest.mark.parametrize(
    ("change", "family"), [("alibi", "gpt2"), ("attention", "gpt2"), ("attention", "llama")]
)
@torch.no_grad()
def test_packed_texts_are_as_alone(change, family):
    model, ids = changed_by(change, family), tokens(6)
    positions = torch.arange(6).repeat(2)[None]

    packed = model(ids.view(1, 12), position_ids=positions, use_cache=False).logits

    assert_close(packed.view(2, 6, -1), model(ids).logits, **near(family))


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated")
@pytest.mark.parametrize(
    ("change", "family"),
    [("alibi", "gpt2"), ("alibi", "bert"), ("rotary", "gpt2"), ("attention", "gpt2")],
)
def test_training_reaches_every_parameter_and_recomputation_changes_no_gradient(change, family):
    grads = []
    for recomputes in (False, True):
        model = changed_by(change, family).train()
        if recomputes:
            recompute_layers(model)
        with seed_context(1):  # of dropout
            model(tokens(6)).logits.square().mean().backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})

    assert all(grad.abs().sum() > 0 for grad in grads[0].values())
    assert_close(*grads)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("change", "family", "implementation"),
    [
        *(("alibi", "gpt2", how) for how in IMPLEMENTATIONS),
        *(("attention", one, "sdpa") for one in drawn(["gpt2", "llama"], 1)),
    ],
)
def test_a_changed_model_compiles_into_one_graph(change, family, implementation):
    model, ids = changed_by(change, family, implementation), tokens(6)
    compiled = torch.compile(model, backend="eager", fullgraph=True)

    assert_close(compiled(ids, use_cache=False).logits, model(ids).logits)


# --- generation ---

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


FAMILIES = {
    **{
        name: partial(build, name, max_position_embeddings=32)
        for name in ("gpt2", "llama", "bert as a decoder")
    },
    "llama in bfloat16": lambda: build("llama").to(torch.bfloat16),
}


def with_drawn_additions(method, family):
    """Change a model, and draw what the method has added."""
    original = FAMILIES[family]()
    model = METHODS[method]()(original).eval()
    known, generator = dict(original.named_parameters()), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in known:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.filterwarnings("ignore::composable.functional.NoEffectWarning")
@pytest.mark.parametrize(
    ("method", "family"),
    [
        *((method, family) for family in ("gpt2", "llama") for method in METHODS),
        *((method, family) for family in list(FAMILIES)[2:] for method in sorted(CACHELESS)),
    ],
)
@torch.no_grad()
def test_generation_with_a_cache_is_that_without_or_is_refused(method, family):
    """Law of methods: A language model that was changed by surgery generates the same tokens with
    and without a cache, or refuses the cache.
    """
    model, ids = with_drawn_additions(method, family), tokens(6)
    count = {"do_sample": False, "max_new_tokens": 4, "min_new_tokens": 4, "eos_token_id": None}
    whole, padded = ids, pad(ids, (3, 0))
    for _ in range(4):
        whole = torch.cat([whole, model(whole).logits[:, -1:].argmax(-1)], 1)

    def generates(given, **how):
        found = model.generate(given, attention_mask=(given > 0).long(), **count, **how)
        return torch.equal(found[:, given.shape[1] - ids.shape[1] :], whole)

    assert generates(padded, use_cache=False)
    if method not in CACHELESS:
        assert generates(ids, use_cache=True)
        assert generates(padded, cache_implementation="static", disable_compile=True)
        return
    assert generates(ids)
    with pytest.raises(ValueError, match=r"(past_key_values|cache) must be None .*use_cache=False"):
        generates(ids, use_cache=True)
