"""Own loops save to URLs, and continue from them."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from composable.algorithms import EMA, MixUp
from composable.checkpoint import CheckpointExistsError
from composable.integrations import adapt_loop
from tests.support.data import shuffling_loader
from tests.support.models import conv_net, same, weights
from tests.support.object_store import machine
from tests.support.remote_run import URL, saved


def build(folder=None, **options):
    model = conv_net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    t = adapt_loop(
        [MixUp(), EMA("2ba")],
        model,
        optimizer,
        loss_fn=cross_entropy,
        seed=17,
        max_duration="3ep",
        save_folder=folder,
        **options,
    )
    return t, optimizer


def train(t, optimizer, stop=None):
    for _ in range(t.state.timestamp.epoch, 3):
        for inputs, _ in t.epoch(shuffling_loader(images=True)):
            if t.state.timestamp.batch == stop:
                raise KeyError("the machine is lost")
            t.loss(t.model(inputs)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return weights(t.model)


@pytest.fixture(scope="module")
def whole_loop(tmp_path_factory):
    return train(*build(tmp_path_factory.mktemp("whole")))


def test_an_own_loop_continues_on_another_machine(server, whole_loop, monkeypatch, tmp_path):
    t, optimizer = build(URL, autoresume=True)
    with pytest.raises(KeyError):
        train(t, optimizer, stop=7)
    t.checkpoints.finish()
    assert saved(server) == [3, 6]
    machine(monkeypatch, tmp_path / "machine-2")
    second, other = build(URL, autoresume=True)
    assert second.state.timestamp.batch == 6
    assert same(train(second, other), whole_loop)
    assert saved(server) == [3, 6, 9]


def test_save_and_resume_take_urls(server, whole_loop, monkeypatch, tmp_path):
    t, optimizer = build()
    with pytest.raises(KeyError):
        train(t, optimizer, stop=4)
    t.save(URL)
    t.checkpoints.finish()
    machine(monkeypatch, tmp_path / "machine-2")
    with pytest.raises(CheckpointExistsError, match="another run"):
        build()[0].save(URL)
    machine(monkeypatch, tmp_path / "machine-3")
    second, _ = build()
    assert second.resume(URL)
    assert second.state.timestamp.batch == t.state.timestamp.batch
