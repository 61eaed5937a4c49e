"""An optimizer that Accelerate has wrapped can be adapted."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from composable.algorithms import GradientClipping
from composable.integrations import adapt_loop
from tests.support.data import batches
from tests.support.models import linear, same, weights
from tests.support.runs import sgd

accelerate = pytest.importorskip("accelerate")


def train(wrap):
    model = linear()
    optimizer = sgd(model.parameters())
    if wrap:
        # The process shares it, with the precision and the plugins of another test.
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        model, optimizer = accelerate.Accelerator(cpu=True).prepare(model, optimizer)
    t = adapt_loop([GradientClipping("norm", 0.01)], model, optimizer, seed=1)
    for inputs, targets in t.epoch(batches(12)):
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def test_wrapped_optimizer_is_followed():
    assert same(train(wrap=True), train(wrap=False))
    assert not torch.equal(train(wrap=True)["weight"], linear().weight)
