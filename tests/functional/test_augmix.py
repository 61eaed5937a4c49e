"""AugMix: chains of operations, mixed by random weights; test_draws.py has its laws."""

import pytest
import torch
from torch.testing import assert_close

from composable.functional import RandAugmentDraw, apply_augmix, apply_randaugment, draw_augmix
from tests.support.tensors import noise, seeded


@pytest.mark.parametrize(("scale", "tolerance"), [(1, 0.5 + 1e-4), (255, 1e-6)])
def test_mixture_matches_the_paper(scale, tolerance):
    """Of uint8 images, it is rounded to the nearest level."""
    x = noise(5, 3, 16, 12) if scale == 1 else noise(5, 3, 16, 12) / scale
    draw = draw_augmix(5, generator=seeded(1))

    mixed = apply_augmix(x, draw)

    per_chain = zip(draw.operations.unbind(1), draw.strengths.unbind(1), strict=True)
    chains = torch.stack([apply_randaugment(x, RandAugmentDraw(*one)) for one in per_chain])
    w, m = draw.chain_weights[..., None, None, None], draw.weight[:, None, None, None]
    exact = (1 - m) * x + m * (w * chains).sum(0)
    assert (mixed - exact).abs().max() <= tolerance


def test_default_depth_is_one_to_three():
    lengths = (draw_augmix(4000, generator=seeded()).operations >= 0).sum(0)

    shares = lengths.flatten().bincount(minlength=4) / lengths.numel()

    assert shares[0] == 0
    assert (shares[1:] - 1 / 3).abs().max() < 0.02


def test_chains_have_the_requested_depth():
    draw = draw_augmix(50, depth=4, width=2, generator=seeded())

    assert draw.operations.shape == (4, 2, 50)
    assert (draw.operations >= 0).all()


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
def test_weights_are_those_of_a_dirichlet_distribution(alpha):
    weights = draw_augmix(20000, alpha=alpha, generator=seeded()).chain_weights

    variance = (1 / 3) * (2 / 3) / (3 * alpha + 1)
    assert_close(weights.mean(1), torch.full((3,), 1 / 3).double(), rtol=0, atol=0.01)
    assert_close(weights.var(1), torch.full((3,), variance).double(), rtol=0.06, atol=0)
    assert_close(weights[0].var(), weights[2].var(), rtol=0.1, atol=0)
