"""Gradient clipping in the loop does what the function does, before the optimizers step."""

import torch
from torch.nn.functional import cross_entropy

from composable.algorithms import GradientClipping
from tests.support.data import batches
from tests.support.models import linear, weights
from tests.support.runs import make_trainer, sgd


def test_the_norm_of_torch_is_the_same():
    model = linear()
    optimizer = sgd(model.parameters())
    for inputs, targets in batches(12):
        cross_entropy(model(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        optimizer.zero_grad()

    trainer = make_trainer(algorithms=[GradientClipping("norm", 0.05)], max_duration="1ep")
    trainer.fit()

    torch.testing.assert_close(weights(trainer.state.model), weights(model))


def test_parameters_without_a_gradient_are_left_out():
    model = linear()
    model.bias.requires_grad_(False)
    before = weights(model)
    for kind in ("norm", "value", "adaptive"):
        make_trainer(model, algorithms=[GradientClipping(kind, 0.05)]).fit()

    assert torch.equal(model.bias, before["bias"])
