"""SAM in the loop: two passes over a batch, one step."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from composable import Event
from composable.algorithms import (
    SAM,
    GradientClipping,
    GyroDropout,
    LabelSmoothing,
    MixUp,
)
from composable.functional import clip_gradients
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


def half(parameters, index):
    parameters = list(parameters)
    return sgd(parameters[2:] if index else parameters[:2])


@pytest.mark.parametrize(
    ("algorithms", "options", "expected"),
    [
        *(
            (SAM(), {"optimizers": partial(kind, lr=0.01)}, {"optimizers": partial(kind, lr=0.01)})
            for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop)
        ),
        (SAM(), {}, {"rho": 0.05}),
        *((SAM(interval=n), {}, {"interval": n}) for n in (2, 3, 100)),
        (SAM(0.5), {"optimizers": [partial(half, index=i) for i in range(2)]}, {"rho": 0.5}),
        ([SAM(0.5), GradientClipping("norm", 0.01)], {}, {"rho": 0.5, "clip": 0.01}),
        ([SAM(0.5), LabelSmoothing(0.3)], {}, {"rho": 0.5, "label_smoothing": 0.3}),
    ],
)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_matches_the_paper_in_a_plain_loop(algorithms, options, expected, dropout):
    loader = batches(dtype=DOUBLE)

    ours = trained(mlp(dropout=dropout, dtype=DOUBLE), loader, algorithms=algorithms, **options)

    assert_close(ours, by_hand(mlp(dropout=dropout, dtype=DOUBLE), loader, **expected))


@pytest.mark.parametrize("split", [{"grad_accum": 3}, {"microbatch_size": 2}])
def test_microbatches_do_not_change_the_second_pass(split):
    loader = batches(dtype=DOUBLE)

    ours = trained(mlp(dtype=DOUBLE), loader, algorithms=SAM(0.5), **split)

    assert_close(ours, by_hand(mlp(dtype=DOUBLE), loader, rho=0.5))


def test_zero_loss_takes_a_step():
    def nothing(outputs, targets):
        return (outputs * 0).sum()

    decaying = partial(torch.optim.SGD, lr=0.1, weight_decay=0.5)
    options = {"loss_fn": nothing, "optimizers": decaying}

    ours = trained(algorithms=SAM(), **options)

    assert all(tensor.isfinite().all() for tensor in ours.values())
    assert same(ours, trained(algorithms=[], **options))
    assert not same(ours, weights(mlp()))


def recorded(model):
    """Record the inputs of a model and the masks of its dropout layers."""
    inputs, masks = [], []
    model.register_forward_pre_hook(lambda _, args: inputs.append(args[0].clone()))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            # Of ones, so that dropped values differ from values that were zero before.
            module.register_forward_pre_hook(lambda _, args: torch.ones_like(args[0]))
            module.register_forward_hook(lambda _, __, out: masks.append(out.clone()))
    return inputs, masks


@pytest.mark.parametrize("split", [{}, {"grad_accum": 2}])
def test_both_passes_use_the_same_inputs_and_masks(split):
    model = mlp(dropout=0.5)
    inputs, masks = recorded(model)
    targets = Watch(Event.BEFORE_LOSS, read=lambda state: state.targets)
    made = make_trainer(model, algorithms=[SAM(), MixUp(1.0)], callbacks=targets, **split)

    made.fit()

    parts = 2 if split else 1
    for seen in (inputs, masks):
        for start in range(0, len(seen), 2 * parts):
            first = seen[start : start + parts]
            assert same(first, seen[start + parts : start + 2 * parts])
    assert len(inputs) == 6 * 2 * parts
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) > len(masks) / 3


def test_reused_masks_are_those_of_the_first_pass_and_count_once():
    made = make_trainer(
        mlp(dropout=0.5), algorithms=[SAM(), GyroDropout(sigma=12, tau=2)], check_effects=False
    )
    _, masks = recorded(made.state.model)

    state = made.fit()

    assert all(same([one], [other]) for one, other in zip(masks[::2], masks[1::2], strict=True))
    assert not torch.equal(masks[0], masks[-1])
    assert state.model[2].steps == 6


def test_running_statistics_and_logged_loss_are_those_of_the_first_pass():
    logger, model, loader = InMemoryLogger(), conv_net(), batches(4, images=True)
    plain = make_trainer(conv_net(), loader, max_duration="1ba", loggers=logger).fit().model

    make_trainer(model, loader, algorithms=SAM(5.0), max_duration="1ba", loggers=logger).fit()

    assert same(model[1].buffers(), plain[1].buffers())
    assert model[1].num_batches_tracked == 1
    first, second = logger.series("loss/train")
    assert first == second


def test_memory_written_in_a_microbatch_is_written_once():
    def counts(event, state):
        if event is not Event.AFTER_LOSS:
            return state
        return state.remember("counts", state.memory.get("counts", 0) + 1)

    assert make_trainer(algorithms=[SAM(), counts]).fit().memory["counts"] == 6


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


class Small(nn.Module):
    """A model in a memory that holds few examples; `whole` of its first calls are free."""

    def __init__(self, most, whole=0):
        super().__init__()
        self.layers, self.most, self.whole = conv_net(), most, whole

    def forward(self, inputs):
        outputs = self.layers(inputs)
        self.whole -= 1
        if len(inputs) > self.most and self.whole < 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return outputs


@pytest.mark.parametrize("whole", [0, 1, 3])
def test_out_of_memory_in_either_pass_repeats_both(whole):
    loader = batches(8, 8, images=True)
    options = {"algorithms": SAM(0.5), "max_duration": "1ba"}
    auto = make_trainer(Small(2, whole), loader, microbatch_size="auto", **options)
    given = make_trainer(Small(9), loader, microbatch_size=2, **options)

    auto.fit()

    assert same(weights(auto.state.model), weights(given.fit().model)) is (whole < 2)
    assert auto._run.microbatches.size == (2 if whole < 2 else 8)


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
    guards = {
        "raise": pytest.raises(NonFiniteLossError, match="the loss of batch 2 was nan"),
        "skip": pytest.warns(NonFiniteLossWarning, match="the loss of batch 2 was nan"),
    }
    with guards[policy]:
        made.fit()

    models = [made.state.model, two.model]
    assert same(*(model.parameters() for model in models))
    assert policy == "raise" or same(*map(weights, models))


# Requests to the loop


def test_the_events_of_a_microbatch_fire_in_both_passes_and_the_others_once():
    trace = Trace()
    make_trainer(
        algorithms=SAM(interval=2), callbacks=trace, max_duration="2ba", grad_accum=2
    ).fit()

    start, end = (
        [i for i, event in enumerate(trace.events) if event is which]
        for which in (Event.BEFORE_TRAIN_BATCH, Event.AFTER_TRAIN_BATCH)
    )
    microbatch = [
        Event.BEFORE_FORWARD,
        Event.AFTER_FORWARD,
        Event.BEFORE_LOSS,
        Event.AFTER_LOSS,
        Event.BEFORE_BACKWARD,
        Event.AFTER_BACKWARD,
    ]
    passes = [trace.events[i + 1 : j] for i, j in zip(start, end, strict=True)]
    assert passes == [microbatch * 4, microbatch * 2]


def test_a_request_is_for_one_batch():
    seen = Watch(
        Event.AFTER_DATALOADER, Event.BATCH_END, read=lambda state: state.second_pass is None
    )

    make_trainer(algorithms=SAM(interval=2), callbacks=seen).fit()

    assert all(seen.values)
