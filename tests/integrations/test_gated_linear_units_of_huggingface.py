"""Gated linear units in Hugging Face's models: only the first half of a block is another one."""

import copy
import pickle

import pytest
import torch
import transformers
from torch.nn.functional import linear
from torch.testing import assert_close

import composable.functional as F

FAMILIES = pytest.mark.parametrize("family", ["bert", "roberta", "gpt2"])


def generator():
    return torch.Generator().manual_seed(0)


def build(family, **options):
    sizes = {
        "vocab_size": 11,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "hidden_size": 8,
        "initializer_range": 0.3,
        "max_position_embeddings": 16,
        "pad_token_id": 0,
        **options,
    }
    config = {
        "bert": lambda: transformers.BertConfig(intermediate_size=12, **sizes),
        "roberta": lambda: transformers.RobertaConfig(intermediate_size=12, **sizes),
        "gpt2": lambda: transformers.GPT2Config(n_inner=12, **sizes),
    }[family]()
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        return transformers.AutoModel.from_config(config).eval()


def gate(model, **options):
    return F.gated_linear_units(model, **{"generator": generator(), **options})


def blocks(model):
    """Return the module of the first linear layer and the function of the block, per layer."""
    if hasattr(model, "h"):
        return [(layer.mlp.c_fc, layer.mlp) for layer in model.h]
    return [
        (layer.intermediate.dense, lambda x, layer=layer: layer.output(layer.intermediate(x), x))
        for layer in model.encoder.layer
    ]


def by_hand(old, new, x, bias):
    """Compute a block by hand from the parts of the old one and the new weights."""
    if hasattr(old, "mlp"):
        first, act = old.mlp.c_fc, old.mlp.act
        weight, gated = first.weight.T, new.mlp.c_fc
    else:
        first, act = old.intermediate.dense, old.intermediate.intermediate_act_fn
        weight, gated = first.weight, new.intermediate.dense
    opened = act(linear(x, weight, first.bias if bias else None))
    hidden = opened * linear(x, gated.non_gated.weight, gated.non_gated.bias)
    return old.mlp.c_proj(hidden) if hasattr(old, "mlp") else old.output(hidden, x)


@FAMILIES
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("other", [False, True])
def test_a_block_is_that_of_the_formula(family, bias, other):
    model = build(family)
    for first, _ in blocks(model):
        torch.nn.init.normal_(first.bias, generator=generator())

    new = gate(model, gated_layer_bias=bias, non_gated_layer_bias=other)

    x = torch.randn(3, 5, 8, generator=generator())
    layers = zip(*(m.h if family == "gpt2" else m.encoder.layer for m in (model, new)), strict=True)
    for (old, now), (_, compute) in zip(layers, blocks(new), strict=True):
        assert_close(compute(x), by_hand(old, now, x, bias))


@FAMILIES
def test_the_model_that_was_given_stays_and_shares_its_weights(family):
    model, ids = build(family), torch.arange(1, 7).view(2, 3)
    text, before = repr(model), model(ids).last_hidden_state

    new = gate(model, gated_layer_bias=True)

    assert not torch.allclose(new(ids).last_hidden_state, before, atol=1e-2)
    assert torch.equal(model(ids).last_hidden_state, before)
    assert repr(model) == text
    parameters = dict(new.named_parameters())
    assert all(parameters[name] is p for name, p in model.named_parameters())
    added = set(new.state_dict()) - set(model.state_dict())
    assert len(added) == 2
    assert all(name.endswith(".non_gated.weight") for name in added)
    assert gate(new) is new


@FAMILIES
def test_models_load_copy_pickle_and_train(family):
    new, ids = gate(build(family)), torch.arange(1, 7).view(2, 3)
    fresh = gate(build(family), generator=torch.Generator().manual_seed(1))
    expected = new(ids).last_hidden_state

    fresh.load_state_dict(new.state_dict())

    for other in (fresh, copy.deepcopy(new), pickle.loads(pickle.dumps(new))):
        assert torch.equal(other(ids).last_hidden_state, expected)
    new.train()(ids).last_hidden_state.square().sum().backward()
    assert all(gated.non_gated.weight.grad is not None for gated, _ in blocks(new))
    assert "non_gated" in repr(new)


def test_linear_biases_and_gates_go_together():
    model, ids = build("gpt2"), torch.arange(1, 11).view(1, 10)
    one = F.alibi(gate(model), max_sequence_length=40)
    other = gate(F.alibi(model, max_sequence_length=40))

    assert torch.equal(one(ids).last_hidden_state, other(ids).last_hidden_state)
