"""Laws of repetition: a forward pass that is repeated gives the same, or the method refuses."""

import copy
import re
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import composable.functional as F
from composable._support.tree import tensors_of
from composable.optim import AdamWScheduleFree, RowAdagrad, SGDScheduleFree
from tests.functional.test_surgeries import OWN
from tests.support.algorithm_cases import ALGORITHMS
from tests.support.campaign import second_once
from tests.support.models import same
from tests.support.optimizers import INNER, parameters
from tests.support.runs import PROBLEMS, training_weights
from tests.support.surgery import filled
from tests.support.tensors import seeded

WAYS = [(reentrant, preserves) for reentrant in (False, True) for preserves in (True, False)]
REFUSAL = "can't be recomputed|don't recompute"
pytestmark = pytest.mark.filterwarnings(
    "ignore::composable.AmbiguousOrderWarning", "ignore::composable.IdleAlgorithmWarning"
)


# --- activation checkpointing ---


class Recomputed:
    """A base before the class of a module, whose calls in training are recomputed."""

    def __call__(self, *args, **kwargs):
        call, (reentrant, preserves) = partial(super().__call__, **kwargs), self.way
        differentiable = any(isinstance(one, Tensor) and one.requires_grad for one in args)
        if not torch.is_grad_enabled() or (reentrant and not differentiable):
            return call(*args)  # the reentrant kind has no gradients then
        return checkpoint(call, *args, use_reentrant=reentrant, preserve_rng_state=preserves)


def recomputed(model, way, depth, first=False):
    """Let the modules at a depth of the tree, or the first of them, recompute their calls."""
    found = [module for name, module in model.named_modules() if _depth(name) == depth]
    for module in found[:1] if first else found:
        kind = type(module)
        module.__class__ = type(kind.__name__, (Recomputed, kind), {"way": way})
    return model


def _depth(name):
    return name.count(".") + 1 if name else 0


def build(surgery):
    """Build the changed model, with values for parameters that start at zero."""
    added = "scales", "skip", "smear", "ngrams", "gate", "value_embedding", "offset", "gain"
    model = filled(surgery.operate(surgery.build()).double(), *added).train()
    for one in model.modules():
        if isinstance(one, F.GyroDropoutLayer):
            one.stay = 1
    return model


def inputs_of(surgery):
    x = surgery.inputs()
    return x.double().requires_grad_() if x.is_floating_point() else x


def trained(model, x, steps=2):
    """Return the outputs and the gradients of a few steps."""
    found, optimizer = [], torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(steps):
        torch.default_generator.manual_seed(step)
        outputs = next(tensors_of(model(x)))
        outputs.square().mean().backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        found += [outputs.detach(), *map(torch.clone, grads)]
        optimizer.step()
        optimizer.zero_grad()
    return found


def unless_refused(call):
    """Return what a call returns; None if it refuses that a part is recomputed."""
    try:
        return call()
    except RuntimeError as error:
        if not re.search(REFUSAL, str(error)):
            raise
        return None


def draws(model, x):
    """Return whether a call draws random numbers."""
    before = torch.get_rng_state()
    model(x)
    return not torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", OWN)
def test_a_recomputed_surgery_trains_alike_or_refuses(name):
    """Law of repetition: Under activation checkpointing, a surgery trains alike, or refuses."""
    surgery = OWN[name]
    x, plain = inputs_of(surgery), build(surgery)
    random, expected = draws(copy.deepcopy(plain), x), trained(copy.deepcopy(plain), x)
    for way in WAYS:
        if random and not way[1]:
            continue  # PyTorch documents other random numbers
        for depth, first in [(0, False), (1, False), (1, True), (2, False), (2, True), (3, False)]:
            model = recomputed(copy.deepcopy(plain), way, depth, first)
            found = unless_refused(partial(trained, model, x))
            if found is not None:
                assert_close(found, expected)


@pytest.mark.parametrize(
    ("problem", "case"),
    second_once((one, case) for one in PROBLEMS for case in ALGORITHMS if case.acts_on(one)),
    ids=repr,
)
def test_a_recomputed_run_of_an_algorithm_has_the_same_weights_or_is_refused(case, problem):
    """Law of repetition: A run whose model is recomputed trains the same weights, or is refused."""

    def run(depth=None):
        model = problem.model()
        for one in model.modules():  # no statistics: PyTorch's recomputation writes them twice
            if isinstance(one, nn.BatchNorm2d):
                one.track_running_stats, one.running_mean, one.running_var = False, None, None
        trainer = problem.trainer(model, algorithms=case.example, max_duration="2ba")
        if depth is not None:
            recomputed(trainer.state.model, (False, True), depth)
        trainer.fit()
        names = dict(trainer.state.model.named_parameters())
        return {name: one for name, one in training_weights(trainer).items() if name in names}

    expected = run()
    found = unless_refused(partial(run, 1))
    assert found is None or same(found, expected)


class OwnAttention(nn.Module):
    """Attention that recomputes its attention alone."""

    heads = 2

    def __init__(self):
        super().__init__()
        self.parts = nn.Linear(8, 24)

    def forward(self, x):
        heads = self.parts(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        attend = partial(scaled_dot_product_attention, is_causal=True)
        return checkpoint(attend, *heads, use_reentrant=True).transpose(1, 2).flatten(2)


class OwnEmbedding(nn.Module):
    """A model that recomputes its embedding alone."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(9, 16), nn.Linear(16, 9)

    def forward(self, input_ids, document_ids=None):
        return self.head(checkpoint(self.words, input_ids, use_reentrant=False))


F.register_attention(OwnAttention, heads="heads")
IDS = torch.tensor([[1, 2, 3, 4]])
ALONE = [
    *(
        (partial(function, **options), OwnAttention, (torch.ones(1, 4, 8),))
        for function, options in [
            (F.qk_norm, {}),
            (F.partial_key_offset, {}),
            (F.exclusive_self_attention, {}),
            (F.attention_output_gate, {"channels": 4}),
            (F.sliding_window, {"window": 2}),
        ]
    ),
    (F.smear, OwnEmbedding, (IDS, IDS > 2)),
    (partial(F.ngram_embeddings, rows=8), OwnEmbedding, (IDS, IDS > 2)),
]


@pytest.mark.parametrize(("operate", "kind", "inputs"), ALONE)
def test_a_part_whose_recomputation_loses_the_change_is_refused(operate, kind, inputs):
    with pytest.raises(RuntimeError, match="alone can't be recomputed"):
        operate(nn.Sequential(kind()) if kind is OwnAttention else kind())(*inputs).sum().backward()


@pytest.mark.compile
@pytest.mark.parametrize("outside", [False, True])
def test_compiled_graphs_refuse_to_recompute_gyro_dropout(outside):
    options = {"sigma": 4, "tau": 2, "iters_per_epoch": 4, "max_epoch": 1}
    model = F.gyro_dropout(nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 1)), **options)
    compiled = partial(torch.compile, backend="aot_eager", fullgraph=True)
    again = partial(checkpoint, compiled(model) if outside else model, use_reentrant=False)
    outputs = (again if outside else compiled(again))(torch.ones(4, 4))

    with pytest.raises(RuntimeError, match="GyroDropout can't be recomputed"):
        outputs.sum().backward()


# --- a second pass ---


@pytest.mark.parametrize("name", OWN)
def test_a_pass_with_the_same_numbers_and_buffers_gives_the_same(name):
    """Law of repetition: With the same random numbers and buffers, a second pass is the first."""
    model, x = build(OWN[name]), inputs_of(OWN[name])
    before = copy.deepcopy(model.state_dict())
    found = []
    for _ in range(3):
        model.load_state_dict(before)
        torch.default_generator.manual_seed(1)
        found.append(next(tensors_of(model(x))).detach())

    assert same(found[:1] * 2, found[1:])


@pytest.mark.parametrize("name", OWN)
def test_both_passes_of_cached_gradients_are_alike(name):
    """Law of repetition: Both passes of cached gradients give the same, for each surgery."""
    model, x = build(OWN[name]), inputs_of(OWN[name]).detach()
    parts, seen, buffers = list(x.split(2)), [], dict(model.named_buffers())
    plain = copy.deepcopy(model)

    def forward(part):
        seen.append(next(tensors_of(model(part))))
        return seen[-1]

    for _ in range(3):
        F.cached_gradients(
            forward, parts, lambda z: z.square().mean(), dict(model.named_parameters())
        )
        for part in parts:
            plain(part)

    for step in range(0, len(seen), 2 * len(parts)):
        first, second = seen[step : step + len(parts)], seen[step + len(parts) :][: len(parts)]
        assert same([one.detach() for one in first], [one.detach() for one in second])
    counts = {name for name, one in buffers.items() if not one.is_floating_point()}
    assert all(torch.equal(buffers[n], one) for n, one in plain.named_buffers() if n in counts)


# --- steps without a gradient ---

OPTIMIZERS = {
    **INNER,
    "rows": partial(RowAdagrad, lr=0.1),
    "schedule-free sgd": partial(SGDScheduleFree, lr=0.5, r=1.0, weight_decay=0.1),
    "schedule-free adamw": partial(AdamWScheduleFree, lr=0.05, r=1.0, weight_decay=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@given(st.lists(st.sets(st.integers(0, 1)), min_size=1, max_size=5))
def test_a_parameter_steps_as_it_would_alone(name, pattern):
    """Law of repetition: Steps in which a parameter has no gradient do not count for it."""
    together, apart = (parameters(shapes=[(3, 4), (3, 4)]) for _ in range(2))
    one, others = OPTIMIZERS[name](together), [OPTIMIZERS[name]([p]) for p in apart]
    generator = seeded()
    for has_gradient in pattern:
        for i, (p, alone) in enumerate(zip(together, apart, strict=True)):
            p.grad = torch.randn(3, 4, generator=generator, dtype=p.dtype)
            alone.grad = p.grad.clone()
            if i not in has_gradient:
                p.grad = None
            else:
                others[i].step()
        one.step()

    assert_close(together, apart)
    if hasattr(one, "eval"):
        for optimizer in (one, *others):
            optimizer.eval()
        assert_close(together, apart)
