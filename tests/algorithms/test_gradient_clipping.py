"""Gradient clipping in the loop does what the function does, before the optimizers step."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from composable import Event, State
from composable.algorithms import GradientClipping
from composable.functional import clip_gradients
from tests.support.tiny import batches, linear, make_trainer, sgd, weights


@pytest.mark.parametrize("kind", ["norm", "value", "adaptive"])
def test_training_is_that_of_a_plain_loop_with_the_function(kind):
    model = linear()
    optimizer = sgd(model.parameters())
    for inputs, targets in batches():
        cross_entropy(model(inputs), targets).backward()
        named = dict(model.named_parameters())
        clipped = clip_gradients(
            {name: p.grad for name, p in named.items()},
            threshold=0.05,
            method=kind,
            params={name: p.detach() for name, p in named.items()},
        )
        for name, p in named.items():
            p.grad = clipped[name]
        optimizer.step()
        optimizer.zero_grad()

    trainer = make_trainer(algorithms=[GradientClipping(kind, 0.05)], max_duration="1ep")
    trainer.fit()

    ours, plain = weights(trainer.state.model), make_trainer(max_duration="1ep")
    plain.fit()
    torch.testing.assert_close(ours, weights(model), rtol=0, atol=0)
    assert not torch.equal(ours["weight"], weights(plain.state.model)["weight"])


def test_the_norm_of_torch_is_the_same():
    model = linear()
    optimizer = sgd(model.parameters())
    for inputs, targets in batches():
        cross_entropy(model(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        optimizer.zero_grad()

    trainer = make_trainer(algorithms=[GradientClipping("norm", 0.05)], max_duration="1ep")
    trainer.fit()

    torch.testing.assert_close(weights(trainer.state.model), weights(model))


def test_it_clips_the_whole_batch_and_not_each_microbatch():
    def trained_in(parts):
        clipping = GradientClipping("norm", 0.05)
        trainer = make_trainer(algorithms=[clipping], grad_accum=parts)
        trainer.fit()
        return weights(trainer.state.model)

    torch.testing.assert_close(trained_in(2), trained_in(None))


def test_it_replaces_the_gradients_in_the_state_and_not_those_of_the_parameters():
    model = linear()
    cross_entropy(model(torch.ones(2, 4)), torch.tensor([0, 0])).backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    copies = {name: grad.clone() for name, grad in grads.items()}

    state = GradientClipping("value", 0.01)(Event.BEFORE_OPTIMIZER_STEP, State(model))

    assert all(grad.abs().max() <= 0.01 for grad in state.gradients.values())
    assert all(p.grad is grads[name] for name, p in model.named_parameters())
    assert all(torch.equal(grads[name], copies[name]) for name in grads)


def test_parameters_without_a_gradient_are_left_out():
    model = linear()
    model.bias.requires_grad_(False)
    before = weights(model)
    for kind in ("norm", "value", "adaptive"):
        make_trainer(model, algorithms=[GradientClipping(kind, 0.05)]).fit()

    assert torch.equal(model.bias, before["bias"])
