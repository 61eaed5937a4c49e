"""Distributions at the ends of the range of `alpha`."""

import pytest
import torch

from composable._support.sampling import draw_beta, draw_dirichlet

ALPHAS = [5e-324, 1e-310, 1e-300, 1e-3, 1.0, 1e300]


@pytest.mark.parametrize("alpha", ALPHAS)
def test_dirichlet_weights_sum_to_one(alpha):
    weights = draw_dirichlet(alpha, (3, 64), generator=torch.Generator().manual_seed(0))

    torch.testing.assert_close(weights.sum(0), torch.ones(64, dtype=torch.float64))
    if alpha < 1e-100:
        assert set(weights.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("alpha", ALPHAS)
def test_beta_weights_are_in_range(alpha):
    weights = draw_beta(alpha, (64,), generator=torch.Generator().manual_seed(0))

    assert ((weights >= 0) & (weights <= 1)).all()
