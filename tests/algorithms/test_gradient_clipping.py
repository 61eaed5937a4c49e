"""Gradient clipping in the loop does what the function does, before the optimizers step."""

import torch

from composable.algorithms import GradientClipping
from tests.support.models import linear, weights
from tests.support.runs import make_trainer


def test_parameters_without_gradients_are_not_modified():
    model = linear()
    model.bias.requires_grad_(False)
    before = weights(model)
    for kind in ("norm", "value", "adaptive"):
        make_trainer(model, algorithms=[GradientClipping(kind, 0.05)]).fit()

    assert torch.equal(model.bias, before["bias"])
