"""Requests to the loop: a second pass over the batch, and a step with other learning rates."""

from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy

from composable import Event
from composable.algorithms import SAM, SWA
from composable.integrations import UnsupportedRequestError, adapt_loop
from tests.support.data import batches
from tests.support.models import mlp, same, weights
from tests.support.observers import Watch
from tests.support.runs import make_trainer, sgd


def requests(at, batch=None, **fields):
    """Build an algorithm that writes fields at an event, in one batch or in all."""

    def request(event, state):
        due = event is at and batch in (None, state.timestamp.batch)
        return state.evolve(**fields) if due else state

    return request


second_pass = partial(requests, Event.BEFORE_TRAIN_BATCH)
halved = partial(requests, Event.BEFORE_OPTIMIZER_STEP, lr_override=lambda rate: rate / 2)


def test_second_pass_gives_the_gradients_at_the_requested_weights():
    def zero(state):
        return {"3.bias": torch.zeros_like(state.model[3].bias)}

    seen = Watch(Event.AFTER_TRAIN_BATCH, read=lambda state: state.current_gradients()["3.bias"])
    algorithm = second_pass(second_pass=zero)
    make_trainer(mlp(), batches(), algorithms=algorithm, callbacks=seen, max_duration="1ba").fit()

    model = mlp()
    torch.nn.init.zeros_(model[3].bias)
    inputs, targets = batches()[0]
    cross_entropy(model(inputs), targets).backward()
    assert torch.equal(seen.values[0], model[3].bias.grad)


def test_second_pass_rejects_weights_of_unknown_parameters():
    algorithm = second_pass(second_pass=lambda state: {"4.bias": torch.zeros(3)})

    with pytest.raises(
        ValueError, match=r"second_pass returned weights for \['4.bias'\], which are"
    ):
        make_trainer(mlp(), batches(), algorithms=algorithm).fit()


def test_lr_override_changes_the_learning_rate_of_the_step():
    half = partial(torch.optim.SGD, lr=0.05, momentum=0.9)

    ours = make_trainer(mlp(), batches(), algorithms=halved()).fit()

    assert same(
        weights(ours.model), weights(make_trainer(mlp(), batches(), optimizers=half).fit().model)
    )


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (SAM(), "SAM requests a second pass over the batch"),
        (
            SWA(schedule_swa_lr=True, swa_lr=0.1),
            "SWA requests a step with other learning rates",
        ),
    ],
)
def test_external_loop_rejects_requests_that_are_declared(algorithm, message):
    model = mlp()

    with pytest.raises(UnsupportedRequestError, match=message):
        adapt_loop([algorithm], model, sgd(model.parameters()), loss_fn=cross_entropy)


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (second_pass(second_pass=dict), "an algorithm requests a second pass"),
        (halved(), "an algorithm requests a step with other learning"),
    ],
)
def test_external_loop_rejects_requests_of_functions_when_they_are_made(algorithm, message):
    model = mlp()
    optimizer = sgd(model.parameters())
    t = adapt_loop(algorithm, model, optimizer, loss_fn=cross_entropy)

    def train():
        for inputs, _ in t.epoch(batches()):
            t.loss(model(inputs)).backward()
            optimizer.step()

    with pytest.raises(UnsupportedRequestError, match=message):
        train()
