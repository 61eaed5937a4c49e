"""MixUp, and the value that mixing gives; the laws of its draw stand in test_draws.py."""

from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import cross_entropy, mse_loss, one_hot
from torch.testing import assert_close

import composable.functional as F
from composable.testing import NoSync
from composable.utils.reproducibility import preserve_rng
from tests.support.tensors import FLOATS, seeded, uniform


def weights(alpha, count=4000):
    return F.draw_mixup(count, alpha=alpha, per_sample=True, generator=seeded()).weight


@pytest.mark.parametrize("weight", [0.75, [0.5, 0.75, 1.0, 0.625]])
def test_inputs_are_blended_as_in_the_paper(weight):
    x, partners = uniform(), [2, 0, 3, 1]

    mixed = F.apply_mixup(
        x, torch.arange(4), F.MixUpDraw(torch.tensor(partners), torch.tensor(weight))
    )

    w = torch.tensor(weight).expand(4)
    expected = torch.stack([w[i] * x[i] + (1 - w[i]) * x[j] for i, j in enumerate(partners)])
    assert_close(mixed.inputs, expected)
    assert mixed.targets.tolist() == [0, 1, 2, 3]
    assert mixed.partner_targets.tolist() == partners
    assert mixed.weight.tolist() == weight


@pytest.mark.parametrize("alpha", [0.2, 1.0, 5.0])
def test_weight_is_a_folded_beta_variable(alpha):
    beta = torch.distributions.Beta(torch.tensor(alpha).double(), torch.tensor(alpha).double())
    with preserve_rng():
        torch.manual_seed(1)
        sample = beta.sample((4000,))

    drawn, expected = weights(alpha).sort().values, torch.maximum(sample, 1 - sample).sort()
    assert (drawn - expected.values).abs().max() < 0.03  # quantile by quantile


def test_extreme_alphas():
    assert (weights(1e-3) > 0.999).float().mean() > 0.95
    assert (weights(1e6) < 0.51).all()


# The value that mixing gives


def pair(weight=0.75):
    return F.MixedTargets(torch.tensor([0, 1]), torch.tensor([2, 1]), torch.as_tensor(weight))


def test_loss_and_soft_targets_do_not_synchronize():
    mixed = F.mixup(uniform(), torch.arange(4), per_sample=True, generator=seeded())
    with NoSync():
        mixed.soft_targets(5)
        mixed.loss(partial(cross_entropy, reduction="none"), torch.zeros(4, 5))


def test_loss_of_more_dimensions_is_averaged():
    x = torch.randn(2, 3, 4, generator=seeded())
    mixed = F.MixedTargets(x, x.flip(0), torch.tensor([0.5, 1.0]))

    loss = mixed.loss(partial(mse_loss, reduction="none"), x)

    assert_close(loss, mse_loss(x[0], x[1]) / 4)


def test_soft_targets_match_the_formula():
    maps, dense = torch.arange(8).reshape(2, 2, 2) % 3, torch.eye(3)
    x, y = torch.zeros(3, 4, 2), torch.arange(12).reshape(3, 4) % 5
    draw = F.draw_mixup(4, per_sample=True, generator=seeded())

    def soft(x, y):
        return F.apply_mixup(x, y, draw).soft_targets(5)

    assert pair().soft(3).tolist() == [[0.75, 0, 0.25], [0, 1, 0]]
    assert pair([0.5, 1.0]).soft(3).tolist() == [[0.5, 0, 0.5], [0, 1, 0]]
    one, other = (one_hot(m, 3).movedim(-1, 1).float() for m in (maps, maps.flip(0)))
    of_maps = F.MixedTargets(maps, maps.flip(0), torch.tensor(0.75))
    assert_close(of_maps.soft(3), torch.lerp(other, one, 0.75))
    for dtype in FLOATS:
        mixed = F.MixedTargets(dense.to(dtype), dense.to(dtype).flip(0), torch.tensor(0.75)).soft(3)
        assert mixed.dtype == dtype
        assert mixed[0].tolist() == [0.75, 0, 0.25]
    numbers = F.MixedTargets(torch.tensor([4.0]), torch.tensor([8.0]), torch.tensor(0.75))
    assert numbers.soft().tolist() == [5.0]
    assert_close(torch.func.vmap(soft)(x, y), torch.stack(list(map(soft, x, y))))


def test_a_graph_that_was_traced_without_a_nan_keeps_the_examples_for_others():
    draw = F.MixUpDraw(torch.tensor([1, 0]), torch.tensor(0.5))
    inputs = torch.tensor([[torch.inf], [-torch.inf]])

    def mix(inputs):
        return F.apply_mixup(inputs, torch.arange(2), draw).inputs

    traced = make_fx(mix)(torch.rand(2, 1))
    assert torch.equal(traced(inputs), mix(inputs))
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        assert mix(fake.from_tensor(inputs)).shape == (2, 1)
