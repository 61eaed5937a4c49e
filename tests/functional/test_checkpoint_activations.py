"""Activation checkpointing: the same bits, and less that is kept for the backward pass."""

import pickle
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy

import composable.functional as F
from tests.support import hugging_face

PRODUCT = "aten.addmm.default"


class Block(nn.Module):
    """Draws random numbers, and writes buffers of which the outputs depend on one."""

    def __init__(self):
        super().__init__()
        self.up, self.norm, self.dropout = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3)
        self.down = spectral_norm(nn.Linear(8, 4))

    def forward(self, x):
        return x + self.dropout(self.down(self.norm(self.up(x)).relu()))


def build(blocks=3):
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(blocks)))


def trained(model, call=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        torch.manual_seed(step)
        (call or model)(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {**model.state_dict(), "next": torch.rand(1)}


def keep_products(context, operator, *args, **kwargs):
    kept = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE
    return kept[str(operator) != PRODUCT]


OPTIONS = [
    {},
    {"every": 2},
    {"policy": [PRODUCT]},
    {"policy": [torch.ops.aten.addmm.default]},
    {"policy": keep_products},
    {"offload": True},
    {"blocks": Block},
    {"blocks": ["[02]", nn.Linear]},
]


@pytest.mark.parametrize("options", OPTIONS, ids=map(" ".join, OPTIONS))
def test_training_has_the_same_bits_with_random_numbers_and_buffers(options):
    given = build()
    model = F.checkpoint_activations(given, **options)
    assert model[0].up.weight is given[0].up.weight
    expected, found = trained(build()), trained(model)
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.compile
@pytest.mark.parametrize("policy", [None, [PRODUCT]])
def test_a_compiled_model_trains_alike(policy):
    def without_draws():
        model = build()
        for block in model:
            block.dropout.p, block.down = 0.0, nn.Linear(8, 4)
        return model

    model = F.checkpoint_activations(without_draws(), policy=policy)
    compiled = torch.compile(model, backend="aot_eager_decomp_partition", fullgraph=True)
    expected, found = trained(without_draws()), trained(model, compiled)
    for name in ("0.up.weight", "2.norm.running_var"):
        assert_close(found[name], expected[name])


class Counting(TorchDispatchMode):
    """Counts the calls of operators."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


def products(model, x):
    with Counting() as counting:
        model(x).sum().backward()
    return counting.calls[PRODUCT]


def test_only_the_chosen_blocks_are_computed_twice_and_not_what_a_policy_keeps():
    x = torch.randn(6, 4)
    plain = build(4)
    counts = [
        products(F.checkpoint_activations(plain, **one), x)
        for one in ({}, {"every": 2}, {"blocks": "1"}, {"policy": [PRODUCT]})
    ]
    one = products(build(1), x)
    assert [count - 4 * one for count in counts] == [4 * one, 2 * one, one, 0]
    with torch.no_grad(), Counting() as counting:
        F.checkpoint_activations(plain)(x)
    assert counting.calls[PRODUCT] == 4 * one


def test_what_is_inside_of_a_block_is_no_block():
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.ReLU())])})
    changed = F.checkpoint_activations(model)
    kinds = {name: type(module).__name__ for name, module in changed.named_modules()}
    assert [name for name, kind in kinds.items() if "Checkpointed" in kind] == ["layers.0"]


def test_a_changed_model_is_found_again_and_can_be_pickled():
    plain = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    model = F.checkpoint_activations(plain, policy=[PRODUCT])
    assert F.checkpoint_activations(model, policy=[PRODUCT]) is model
    with pytest.raises(ValueError, match="is converted already"):
        F.checkpoint_activations(model, every=2)
    loaded = pickle.loads(pickle.dumps(model))
    assert [type(one) for one in loaded] == [type(one) for one in model]
    assert torch.equal(loaded.eval()(torch.ones(2, 4)), model.eval()(torch.ones(2, 4)))


def test_blocks_that_match_nothing_are_an_error_with_the_argument():
    with pytest.raises(ValueError, match=r"blocks='layers\.\*' selects no module of Sequential"):
        F.checkpoint_activations(build(), "layers.*")


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_block_of_transformers_gets_no_cache(family):
    pytest.importorskip("transformers")
    model, ids = hugging_face.build(family, num_hidden_layers=3).train(), hugging_face.tokens(4)

    def gradients(one):
        one.zero_grad()
        torch.manual_seed(1)
        one(ids, labels=ids).loss.backward()
        return [p.grad.clone() for p in one.parameters()]

    changed = F.checkpoint_activations(model)
    assert all(map(torch.equal, gradients(changed), gradients(model)))
    with torch.no_grad():
        cache = model(ids).past_key_values
    with pytest.raises(ValueError, match="the cache has 4 tokens"):
        changed(ids, past_key_values=cache)
