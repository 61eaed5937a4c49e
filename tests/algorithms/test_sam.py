"""SAM in the loop: two passes over a batch, one step; and requests of algorithms to the loop."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from composable import Algorithm, Event
from composable.algorithms import (
    SAM,
    SWA,
    GradientClipping,
    GyroDropout,
    LabelSmoothing,
)
from composable.functional import clip_gradients
from composable.integrations import UnsupportedRequestError, adapt_loop
from composable.loggers import InMemoryLogger
from composable.trainer.guards import NonFiniteLossError, NonFiniteLossWarning
from composable.utils.reproducibility import seed_step
from tests.support.data import batches
from tests.support.models import conv_net, mlp, same, weights
from tests.support.observers import Trace, Watch
from tests.support.runs import make_trainer, sgd

DOUBLE = torch.float64


def by_hand(model, loader, *, optimizers=sgd, rho=0.05, interval=1, clip=None, label_smoothing=0.0):
    """Train with SAM as its paper describes it, in a plain loop of two epochs."""
    optimizer, step = optimizers(model.parameters()), 0
    loss_fn = partial(cross_entropy, label_smoothing=label_smoothing)
    params = list(model.parameters())
    model.train()
    for _ in range(2):
        for inputs, targets in loader:

            def gradients(inputs=inputs, targets=targets, step=step):
                seed_step(17, step)
                return torch.autograd.grad(loss_fn(model(inputs), targets), params)

            grads = gradients()
            if step % interval == 0:
                size = torch.sqrt(sum((grad**2).sum() for grad in grads))
                own = [param.detach().clone() for param in params]
                with torch.no_grad():
                    for param, grad in zip(params, grads, strict=True):
                        param.add_(rho * grad / size)
                grads = gradients()
                with torch.no_grad():
                    for param, value in zip(params, own, strict=True):
                        param.copy_(value)
            if clip is not None:
                grads = clip_gradients(list(grads), threshold=clip)
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad
            optimizer.step()
            step += 1
    return weights(model)


def trained(model=None, loader=None, *, algorithms, **options):
    made = make_trainer(mlp() if model is None else model, loader, algorithms=algorithms, **options)
    return weights(made.fit().model)


@pytest.mark.parametrize(
    ("algorithms", "options", "expected"),
    [
        *(
            (SAM(), {"optimizers": partial(kind, lr=0.01)}, {"optimizers": partial(kind, lr=0.01)})
            for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop)
        ),
        (SAM(), {}, {"rho": 0.05}),
        *((SAM(interval=n), {}, {"interval": n}) for n in (2, 3, 100)),
        (
            SAM(0.5),
            {"optimizers": [lambda p: sgd([*p][:2]), lambda p: sgd([*p][2:])]},
            {"rho": 0.5},
        ),
        ([SAM(0.5), GradientClipping("norm", 0.01)], {}, {"rho": 0.5, "clip": 0.01}),
        ([SAM(0.5), LabelSmoothing(0.3)], {}, {"rho": 0.5, "label_smoothing": 0.3}),
    ],
)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_matches_the_paper_in_a_plain_loop(algorithms, options, expected, dropout):
    loader = batches(dtype=DOUBLE)

    ours = trained(mlp(dropout=dropout, dtype=DOUBLE), loader, algorithms=algorithms, **options)

    assert_close(ours, by_hand(mlp(dropout=dropout, dtype=DOUBLE), loader, **expected))


def test_zero_loss_takes_a_step():
    def nothing(outputs, targets):
        return (outputs * 0).sum()

    decaying = partial(torch.optim.SGD, lr=0.1, weight_decay=0.5)
    options = {"loss_fn": nothing, "optimizers": decaying}

    ours = trained(algorithms=SAM(), **options)

    assert all(tensor.isfinite().all() for tensor in ours.values())
    assert same(ours, trained(algorithms=[], **options))
    assert not same(ours, weights(mlp()))


def test_statistics_masks_memory_and_logged_loss_are_those_of_the_first_pass():
    def counts(event, state):
        if event is not Event.AFTER_LOSS:
            return state
        return state.remember("counts", state.memory.get("counts", 0) + 1)

    def net():
        model = conv_net()
        return model.append(nn.Dropout(0.1))

    logger, loader = InMemoryLogger(), batches(4, images=True)
    options = {"max_duration": "1ba", "loggers": logger, "check_effects": False}
    gyro = GyroDropout(sigma=12, tau=2)
    plain = make_trainer(net(), loader, algorithms=gyro, **options).fit().model

    state = make_trainer(net(), loader, algorithms=[SAM(5.0), gyro, counts], **options).fit()

    assert same(state.model.buffers(), plain.buffers())
    assert state.model[-1].steps == state.model[1].num_batches_tracked == 1
    assert state.memory["counts"] == 1
    first, second = logger.series("loss/train")
    assert first == second


def test_frozen_parameters_do_not_move():
    model = mlp()
    model[0].requires_grad_(False)
    before = weights(model)

    ours = trained(model, algorithms=SAM(5.0))

    unchanged = [name for name in before if torch.equal(ours[name], before[name])]
    assert unchanged == ["0.weight", "0.bias"]


# What can go wrong in the second pass


class Fails(nn.Module):
    """A model that raises at one of its calls."""

    def __init__(self, at, error):
        super().__init__()
        self.layers, self.at, self.error, self.calls = conv_net(), at, error, 0

    def forward(self, inputs):
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        return self.layers(inputs)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("in the second pass")])
def test_interruption_in_the_second_pass_restores_the_weights(error):
    loader = batches(images=True)
    whole = Fails(0, None)
    made = make_trainer(Fails(6, error), loader, algorithms=SAM(5.0), check_effects=False)
    two = make_trainer(whole, loader, algorithms=SAM(5.0), max_duration="2ba").fit()

    with pytest.raises(type(error)):
        made.fit()

    assert made.state.timestamp.batch == 2
    parameters = [list(state.model.parameters()) for state in (made.state, two)]
    assert same(*parameters)


def breaks(at):
    """Return a loss function that is NaN at one of its calls."""
    calls = []

    def loss(outputs, targets):
        calls.append(0)
        return cross_entropy(outputs, targets) * (float("nan") if len(calls) == at else 1)

    return loss


@pytest.mark.parametrize("at", [5, 6])
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_batch_with_nan_loss_in_either_pass_changes_no_weight(at, policy):
    options = {"loader": batches(images=True), "algorithms": SAM()}
    two = make_trainer(conv_net(), **options, max_duration="2ba").fit()
    made = make_trainer(
        conv_net(), **options, loss_fn=breaks(at), nonfinite_loss=policy, max_duration="3ba"
    )
    message = "the loss of batch 2 was nan"
    raised = partial(pytest.raises, NonFiniteLossError)
    warned = partial(pytest.warns, NonFiniteLossWarning)
    with (raised if policy == "raise" else warned)(match=message):
        made.fit()

    models = [made.state.model, two.model]
    assert same(*(model.parameters() for model in models))
    assert policy == "raise" or same(*map(weights, models))


# Requests to the loop


def test_only_events_of_microbatches_repeat_in_the_second_pass():
    trace = Trace()
    make_trainer(
        algorithms=SAM(interval=2), callbacks=trace, max_duration="2ba", grad_accum=2
    ).fit()

    start, end = (
        [i for i, event in enumerate(trace.events) if event is which]
        for which in (Event.BEFORE_TRAIN_BATCH, Event.AFTER_TRAIN_BATCH)
    )
    events = list(Event)
    microbatch = events[events.index(Event.BEFORE_FORWARD) : events.index(Event.AFTER_BACKWARD) + 1]
    passes = [trace.events[i + 1 : j] for i, j in zip(start, end, strict=True)]
    assert passes == [microbatch * 4, microbatch * 2]


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
        (SWA(schedule_swa_lr=True, swa_lr=0.1), "SWA requests a step with other learning rates"),
        (second_pass(second_pass=dict), "an algorithm requests a second pass"),
        (halved(), "an algorithm requests a step with other learning"),
    ],
)
def test_external_loop_rejects_requests_that_are_declared_and_those_that_are_made(
    algorithm, message
):
    model = mlp()
    optimizer = sgd(model.parameters())

    def train():
        t = adapt_loop(algorithm, model, optimizer, loss_fn=cross_entropy)
        assert not isinstance(algorithm, Algorithm), "it declares its request"
        for inputs, _ in t.epoch(batches()):
            t.loss(model(inputs)).backward()
            optimizer.step()

    with pytest.raises(UnsupportedRequestError, match=message):
        train()
