"""The algorithms in a loop with Lightning Fabric."""

import pytest
from lightning.fabric import Fabric

from composable.integrations.external_loop import UnsupportedRequestError
from tests.integrations.table import (
    ASKS,
    SGD,
    acts,
    begin,
    data,
    evaluated,
    loader,
    net,
    ours,
    probe,
    refused_in,
    works_in,
)
from tests.support.runs import same


def train(name, batches):
    """Train with the loop of the page."""
    fabric = Fabric(accelerator="cpu", devices=1)
    model = net(name)
    optimizer = SGD(model.parameters())
    t = begin(name, model, optimizer=optimizer)
    model, wrapped = fabric.setup(t.model, optimizer)
    for _ in range(2):
        for inputs, _ in t.epoch(batches(fabric)):
            fabric.backward(t.loss(model(inputs)))
            wrapped.step()
            wrapped.zero_grad()
    return evaluated(t, probe(name))


@pytest.mark.parametrize("name", works_in("Fabric"))
def test_in_fabric(name):
    result = train(name, lambda fabric: data(name))

    assert same(result, ours(name))
    assert acts(name, result)


@pytest.mark.parametrize("name", refused_in("Fabric"))
def test_refused_in_fabric(name):
    with pytest.raises(UnsupportedRequestError, match=ASKS):
        train(name, None)


def test_a_loader_that_fabric_set_up_shuffles_as_for_the_trainer():
    shuffling = loader(shuffle=True)

    result = train("MixUp", lambda fabric: fabric.setup_dataloaders(shuffling))

    assert same(result, ours("MixUp", loader(shuffle=True)))
