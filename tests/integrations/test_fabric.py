"""The algorithms in a loop with Lightning Fabric."""

import pytest
from lightning.fabric import Fabric

from tests.integrations.table import SETS, SGD, acts, data, evaluated, ours, start, works_in
from tests.runs import conv_net, same, shuffling_loader


def train(algorithms, loader):
    """The loop of the page."""
    fabric = Fabric(accelerator="cpu", devices=1)
    model = conv_net()
    optimizer = SGD(model.parameters())
    t = start(algorithms, model, optimizer=optimizer)
    model, wrapped = fabric.setup(t.model, optimizer)
    for _ in range(2):
        for inputs, _ in t.epoch(loader(fabric)):
            fabric.backward(t.loss(model(inputs)))
            wrapped.step()
            wrapped.zero_grad()
    return evaluated(t)


@pytest.mark.parametrize("name", works_in("Fabric"))
def test_in_fabric(name):
    result = train(SETS[name], lambda fabric: data())

    assert same(result, ours(name))
    assert acts(name, result)


def test_a_loader_that_fabric_set_up_shuffles_as_for_the_trainer():
    loader = shuffling_loader(images=True)

    result = train(SETS["MixUp"], lambda fabric: fabric.setup_dataloaders(loader))

    assert same(result, ours("MixUp", shuffling_loader(images=True)))
