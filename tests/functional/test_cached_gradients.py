"""Cached gradients: those of the whole batch, for any loss and any split."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from composable.functional import cached_gradients
from tests.support.contrastive import Contrast, TwoEncoders, pairs
from tests.support.losses import RECOGNIZED, REFUSED
from tests.support.tensors import seeded

LOSSES = {**RECOGNIZED, **REFUSED}
X = torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 4


def network(dropout=0.0):
    torch.default_generator.manual_seed(0)
    layers = nn.Linear(3, 5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, 4)
    return nn.Sequential(*layers).double()


def plain(model, loss_fn, outputs):
    loss = loss_fn(outputs)
    names, params = zip(*model.named_parameters(), strict=True)
    return loss, dict(zip(names, torch.autograd.grad(loss, params), strict=True))


def same(found, expected):
    loss, grads = expected
    assert torch.allclose(found.loss, loss, equal_nan=True)  # such as a mean over no label
    assert found.grads.keys() == grads.keys()
    for name, grad in grads.items():
        assert torch.allclose(found.grads[name], grad, equal_nan=True)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(sorted(LOSSES)), st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_gradients_of_any_loss_and_split_are_those_of_the_whole(name, sizes):
    model, x, y = network(), X[: sum(sizes)], Y[: sum(sizes)]

    def loss_fn(outputs):
        return LOSSES[name](outputs, y)

    found = cached_gradients(model, x.split(sizes), loss_fn, dict(model.named_parameters()))

    same(found, plain(model, loss_fn, model(x)))


def test_parameters_of_the_loss_get_their_gradient():
    model, loss = TwoEncoders(), Contrast()
    ((left, right, classes),) = pairs(13)
    params = {**dict(model.named_parameters()), "temperature": loss.temperature}
    parts = list(zip(left.split(5), right.split(5), strict=True))

    found = cached_gradients(
        lambda part: model(*part), parts, lambda outputs: loss(outputs, classes), params
    )

    loss(model(left, right), classes).backward()
    for name, param in params.items():
        assert torch.allclose(found.grads[name], param.grad, atol=1e-6)
    assert loss.calls == 2


def test_both_passes_draw_the_numbers_of_the_generator():
    model, drawn = network(dropout=0.5), []

    def forward(part):
        drawn.append(model(part))
        return drawn[-1]

    before = torch.get_rng_state()
    found = [
        cached_gradients(
            forward,
            X.split(5),
            lambda outputs: cross_entropy(outputs, Y),
            dict(model.named_parameters()),
            generator=seeded(seed),
        )
        for seed in (1, 1, 2)
    ]

    assert torch.equal(torch.get_rng_state(), before)
    for i in range(3):
        assert torch.equal(drawn[i], drawn[3 + i])
    assert torch.equal(found[0].grads["0.weight"], found[1].grads["0.weight"])
    assert not torch.equal(found[0].grads["0.weight"], found[2].grads["0.weight"])
    assert model[0].weight.grad is None


class Carrying(nn.Module):
    """A model with a hidden state, which its child keeps in a buffer."""

    def __init__(self, assigns):
        super().__init__()
        self.assigns, self.layer = assigns, nn.Linear(3, 3)
        self.layer.register_buffer("hidden", torch.zeros(3))

    def forward(self, x):
        hidden = self.layer.hidden + x.mean(0)
        if self.assigns:
            self.layer.hidden = hidden
        else:
            self.layer.hidden.copy_(hidden)
        return torch.tanh(self.layer(x) + hidden)


@pytest.mark.parametrize("assigns", [False, True])
def test_both_passes_start_with_the_same_buffers(assigns):
    model, other = Carrying(assigns).double(), Carrying(assigns).double()
    other.load_state_dict(model.state_dict())
    parts = X.split(4)
    outputs = torch.cat([other(part) for part in parts])
    expected = plain(other, lambda z: z.square().mean(), outputs)

    params = dict(model.named_parameters())
    same(cached_gradients(model, parts, lambda z: z.square().mean(), params), expected)

    assert torch.equal(model.layer.hidden, other.layer.hidden)


@pytest.mark.parametrize("assigns", [False, True])
@pytest.mark.parametrize("last", [1, 3, 5])
def test_an_error_of_the_first_pass_leaves_the_buffers_and_generators_as_they_were(last, assigns):
    model, calls = Carrying(assigns).double(), []
    before, held = model.layer.hidden.clone(), model.layer.hidden
    state = torch.get_rng_state()

    def forward(part):
        outputs = model(part)
        calls.append(part)
        return outputs if len(calls) < last else 1 / 0

    with pytest.raises(ZeroDivisionError):
        cached_gradients(
            forward, X.split(2), torch.sum, dict(model.named_parameters()), generator=seeded()
        )

    assert torch.equal(torch.get_rng_state(), state)
    assert model.layer.hidden is held
    assert torch.equal(held, before)


def test_an_unused_parameter_has_no_gradient():
    model = network()
    params = {"unused": nn.Parameter(torch.ones(1)), "frozen": torch.ones(1)}

    found = cached_gradients(model, [X], lambda outputs: outputs.sum(), params)

    assert found.grads == {"unused": None, "frozen": None}
