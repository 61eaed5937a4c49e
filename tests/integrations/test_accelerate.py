"""The algorithms in a loop with Hugging Face Accelerate."""

import pytest
from accelerate import Accelerator

from composable.integrations.external_loop import UnsupportedRequestError
from tests.integrations.table import (
    ASKS,
    SGD,
    acts,
    begin,
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
    accelerator = Accelerator(cpu=True)
    model = net(name)
    optimizer = SGD(model.parameters())
    t = begin(name, model, optimizer=optimizer)
    model, wrapped, batches = accelerator.prepare(t.model, optimizer, batches)
    for _ in range(2):
        for inputs, _ in t.epoch(batches):
            accelerator.backward(t.loss(model(inputs)))
            wrapped.step()
            wrapped.zero_grad()
    return evaluated(t, probe(name))


@pytest.mark.parametrize("name", works_in("Accelerate"))
def test_in_accelerate(name):
    result = train(name, loader(name))

    assert same(result, ours(name, loader(name)))
    assert acts(name, result)


@pytest.mark.parametrize("name", refused_in("Accelerate"))
def test_refused_in_accelerate(name):
    with pytest.raises(UnsupportedRequestError, match=ASKS):
        train(name, None)


def test_a_loader_that_accelerate_prepared_shuffles_as_for_the_trainer():
    result = train("MixUp", loader(shuffle=True))

    assert same(result, ours("MixUp", loader(shuffle=True)))
