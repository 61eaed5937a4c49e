"""Laws of meaning: what SAM steps on, and what SWA is the mean of, in any run."""

from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import composable.functional as F
from composable import Event, Time
from composable.algorithms import SAM, SWA
from tests.support.algorithm_cases import algorithm_sets
from tests.support.data import batches
from tests.support.models import conv_net, mlp, same, weights
from tests.support.observers import Watch
from tests.support.runs import gradients_of, make_trainer
from tests.support.strategies import few, seeds

DOUBLE = torch.float64

radii = st.floats(0, 2)
splits = st.sampled_from([{}, {"grad_accum": 2}, {"grad_accum": 3}, {"microbatch_size": 3}])


def gradient_of(model, batch):
    """Return a function from weights to the gradients of a batch, by autograd."""
    inputs, targets = batch

    def at(named):
        params = {name: value.detach().requires_grad_() for name, value in named.items()}
        loss = cross_entropy(functional_call(model, params, (inputs,)), targets)
        return dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))

    return at


@few
@given(rho=radii, count=st.integers(1, 12), size=st.integers(1, 8), split=splits, seed=seeds)
def test_gradients_of_sam_match_the_paper(rho, count, size, split, seed):
    """Law of weights: The gradients of SAM are those at the perturbed weights of the paper's
    formula, computed by autograd, for any split of the batch; the weights are then restored bit for
    bit.
    """
    loader = batches(count, size, dtype=DOUBLE)
    model = mlp(dtype=DOUBLE, seed=seed % 1000)
    params = {name: value.detach().clone() for name, value in model.named_parameters()}

    found = gradients_of(model, loader, algorithms=SAM(rho), **split)

    for batch, (ours, _) in zip(loader, found, strict=True):
        gradient = gradient_of(model, batch)
        grads = gradient(params)
        size = torch.sqrt(sum(grad.square().sum() for grad in grads.values()))
        worst = {name: params[name] + rho * grads[name] / (size + 1e-12) for name in params}
        assert_close(ours, gradient(worst))
    assert same(model.parameters(), params.values())


class Ears(nn.Module):
    """A net that keeps what it was called on, and what dropout makes of ones."""

    def __init__(self):
        super().__init__()
        self.net, self.dropout = conv_net(), nn.Dropout(0.5)
        self.heard = []

    def forward(self, inputs):
        mask = self.dropout(torch.ones(len(inputs), 3))
        self.heard.append((inputs.detach().clone(), mask))
        return self.net(inputs) * mask


def beside_sam(case):
    """Return whether an algorithm requests a second pass, or requires a certain model."""
    return case.name in ("SAM", "SelectiveBackprop", "NoOpModel", "SWA")


@few
@pytest.mark.filterwarnings("ignore::composable.AmbiguousOrderWarning")
@pytest.mark.filterwarnings("ignore::composable.IdleAlgorithmWarning")  # the run is short
@given(
    seed=seeds,
    split=splits,
    interval=st.integers(1, 3),
    others=algorithm_sets(but=beside_sam, max_size=3),
)
def test_both_passes_of_sam_see_the_same_examples_and_the_same_dropout(
    seed, split, interval, others
):
    """Law of weights: Both passes use the same examples and the same dropout, together with any
    other algorithms.
    """
    begun = Watch(Event.BEFORE_FORWARD, read=lambda state: state.timestamp.batch)
    made = make_trainer(
        Ears(),
        batches(images=True),
        algorithms=[*others, SAM(interval=interval)],
        callbacks=begun,
        seed=seed,
        max_duration="1ep",
        check_effects=False,
        **split,
    )

    made.fit()

    model = made.state.model
    for batch in range(3):
        calls = [heard for heard, at in zip(model.heard, begun.values, strict=True) if at == batch]
        if batch % interval == 0:
            half = len(calls) // 2
            assert half
            for first, second in zip(calls[:half], calls[half:], strict=True):
                assert same(first, second)


@few
@given(
    start=st.integers(0, 11),
    length=st.integers(1, 12),
    interval=st.integers(1, 4),
    by_epoch=st.booleans(),
    unit=st.sampled_from(["ba", "dur"]),
)
def test_swa_is_the_mean_of_the_weights_at_its_updates(start, length, interval, by_epoch, unit):
    """Law of weights: The SWA weights are the mean of the weights at its updates, which occur at
    the batches given by direct calculation.
    """
    end, per_epoch = min(start + length, 12), 3
    step = interval * per_epoch if by_epoch else interval
    due = [k for k in range(1, 13) if k % step == 0 and k >= start and k - 1 < end]
    assume(due)
    whole = 12 if unit == "dur" else 1
    algorithm = SWA(
        swa_start=Time(Fraction(start, whole), unit),
        swa_end=Time(Fraction(end, whole), unit),
        update_interval=f"{interval}{'ep' if by_epoch else 'ba'}",
    )
    seen = Watch(Event.BATCH_END, read=lambda state: weights(state.model))

    state = make_trainer(
        mlp(dtype=DOUBLE),
        batches(dtype=DOUBLE),
        algorithms=algorithm,
        callbacks=seen,
        max_duration="4ep",
    ).fit()

    average = state.averages["SWA"]
    columns = zip(*(seen.values[k - 1].values() for k in due), strict=True)
    assert state.memory["SWA"]["count"] == len(due)
    assert_close(list(average.values()), [torch.stack(c).mean(0) for c in columns])


@few
@given(sizes=st.lists(st.integers(2, 6), min_size=1, max_size=5), seed=seeds)
def test_recomputed_statistics_are_the_plain_mean_over_the_batches(sizes, seed):
    """Law of weights: Recomputed batch norm statistics are the plain mean over the batches."""
    generator = torch.Generator().manual_seed(seed)
    norm = nn.BatchNorm1d(3, dtype=DOUBLE)
    parts = [torch.randn(size, 3, generator=generator, dtype=DOUBLE) for size in sizes]

    new = F.recompute_batch_norm_statistics(norm, parts)

    assert_close(new.running_mean, torch.stack([p.mean(0) for p in parts]).mean(0))
    assert_close(new.running_var, torch.stack([p.var(0) for p in parts]).mean(0))
    assert new.num_batches_tracked == len(sizes)
    assert F.reset_batch_norm_statistics(new).num_batches_tracked == 0
