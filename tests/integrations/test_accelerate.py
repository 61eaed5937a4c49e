"""The algorithms in a loop with Hugging Face Accelerate."""

import pytest
from accelerate import Accelerator

from tests.integrations.table import SETS, SGD, acts, evaluated, images, ours, start, works_in
from tests.runs import conv_net, same


def train(algorithms, loader):
    """The loop of the page."""
    accelerator = Accelerator(cpu=True)
    model = conv_net()
    optimizer = SGD(model.parameters())
    t = start(algorithms, model, optimizer=optimizer)
    model, wrapped, loader = accelerator.prepare(t.model, optimizer, loader)
    for _ in range(2):
        for inputs, _ in t.epoch(loader):
            accelerator.backward(t.loss(model(inputs)))
            wrapped.step()
            wrapped.zero_grad()
    return evaluated(t)


@pytest.mark.parametrize("name", works_in("Accelerate"))
def test_in_accelerate(name):
    result = train(SETS[name], images())

    assert same(result, ours(name, images()))
    assert acts(name, result)


def test_a_loader_that_accelerate_prepared_shuffles_as_for_the_trainer():
    result = train(SETS["MixUp"], images(shuffle=True))

    assert same(result, ours("MixUp", images(shuffle=True)))
