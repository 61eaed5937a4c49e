"""SAM in the loop: two passes over a batch, one step."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from composable import Control, Event, anneal, during, every, when
from composable.algorithms import (
    EMA,
    SAM,
    GradientClipping,
    GyroDropout,
    LabelSmoothing,
    MixUp,
)
from composable.functional import clip_gradients
from composable.integrations import adapt_loop
from composable.integrations.external_loop import UnsupportedRequestError
from composable.loggers import InMemoryLogger
from composable.plan.compatibility import AmbiguousOrderWarning
from composable.trainer.guards import NonFiniteLossError, NonFiniteLossWarning
from composable.utils.reproducibility import seed_step
from tests.support.runs import (
    Asks,
    Draws,
    Trace,
    Watch,
    batches,
    conv_net,
    mlp,
    same,
    sgd,
    trainer,
    weights,
)

DOUBLE = torch.float64
OPTIMIZERS = {
    "SGD": sgd,
    "Adam": partial(torch.optim.Adam, lr=0.01),
    "AdamW": partial(torch.optim.AdamW, lr=0.01),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.01),
}


def by_hand(model, loader, optimizers=sgd, *, rho=0.05, interval=1, epochs=2, clip=None, seed=None):
    """SAM as its paper describes it, in a plain loop."""
    optimizer, step = optimizers(model.parameters()), 0
    params = list(model.parameters())
    model.train()
    for _ in range(epochs):
        for inputs, targets in loader:

            def gradients(inputs=inputs, targets=targets, step=step):
                if seed is not None:
                    seed_step(seed, step)
                return torch.autograd.grad(cross_entropy(model(inputs), targets), params)

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
    made = trainer(model, loader, algorithms=algorithms, **options)
    return weights(made.fit().model)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_trains_as_the_paper_says_with_any_optimizer(name):
    loader = batches(dtype=DOUBLE)

    ours = trained(mlp(dtype=DOUBLE), loader, algorithms=SAM(), optimizers=OPTIMIZERS[name])

    assert_close(ours, by_hand(mlp(dtype=DOUBLE), loader, OPTIMIZERS[name]))
    plain = trained(mlp(dtype=DOUBLE), loader, algorithms=[], optimizers=OPTIMIZERS[name])
    assert not same(ours, plain)


def test_the_same_dropout_acts_in_both_passes():
    loader = batches(dtype=DOUBLE)

    ours = trained(mlp(dropout=0.5, dtype=DOUBLE), loader, algorithms=SAM(0.5), seed=17)

    assert_close(ours, by_hand(mlp(dropout=0.5, dtype=DOUBLE), loader, rho=0.5, seed=17))


def test_only_the_gradients_of_the_second_pass_are_clipped():
    loader = batches(dtype=DOUBLE)
    algorithms = [SAM(rho=0.5), GradientClipping("norm", 0.01)]

    ours = trained(mlp(dtype=DOUBLE), loader, algorithms=algorithms)

    assert_close(ours, by_hand(mlp(dtype=DOUBLE), loader, rho=0.5, clip=0.01))


@pytest.mark.parametrize("interval", [2, 3, 100])
def test_an_interval_leaves_the_other_batches_as_they_are(interval):
    loader = batches(dtype=DOUBLE)

    ours = trained(mlp(dtype=DOUBLE), loader, algorithms=SAM(interval=interval))

    assert_close(ours, by_hand(mlp(dtype=DOUBLE), loader, interval=interval))


def test_an_interval_is_that_of_every():
    assert same(trained(algorithms=SAM(interval=2)), trained(algorithms=every("2ba", SAM())))


def test_it_goes_under_combinators():
    whole = trained(algorithms=SAM(0.2))

    assert same(trained(algorithms=when(lambda state: True, SAM(0.2))), whole)
    assert same(trained(algorithms=anneal(SAM, rho=lambda clock: 0.2)), whole)
    assert same(trained(algorithms=during("0dur", "1dur", SAM(0.2))), whole)


@pytest.mark.parametrize("split", [{"grad_accum": 3}, {"microbatch_size": 2}])
def test_microbatches_make_no_difference(split):
    loader = batches(dtype=DOUBLE)

    ours = trained(mlp(dtype=DOUBLE), loader, algorithms=SAM(0.5), **split)

    assert_close(ours, by_hand(mlp(dtype=DOUBLE), loader, rho=0.5))


def test_in_a_ball_without_size_it_is_plain_training():
    model = partial(conv_net, seed=3)
    loader = batches(images=True)

    assert same(
        trained(model(), loader, algorithms=SAM(0.0)), trained(model(), loader, algorithms=[])
    )


def test_in_a_small_ball_it_is_nearly_plain_training():
    loader = batches(dtype=DOUBLE)
    plain = trained(mlp(dtype=DOUBLE), loader, algorithms=[])

    def distance(rho):
        ours = trained(mlp(dtype=DOUBLE), loader, algorithms=SAM(rho))
        return max(float((a - b).abs().max()) for a, b in zip(ours, plain, strict=True))

    assert distance(1e-6) < 1e-5
    assert distance(1e-6) == pytest.approx(distance(1e-5) / 10, rel=0.01)


def test_a_loss_of_exactly_zero_is_stepped_on():
    def nothing(outputs, targets):
        return (outputs * 0).sum()

    decaying = partial(torch.optim.SGD, lr=0.1, weight_decay=0.5)
    options = {"loss_fn": nothing, "optimizers": decaying}

    ours = trained(algorithms=SAM(), **options)

    assert all(tensor.isfinite().all() for tensor in ours)
    assert same(ours, trained(algorithms=[], **options))
    assert not same(ours, weights(mlp()))


def hears(model):
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
def test_mixing_and_masks_are_those_of_the_first_pass(split):
    model = mlp(dropout=0.5)
    inputs, masks = hears(model)
    targets = Watch(lambda state: state.targets, Event.BEFORE_LOSS)
    made = trainer(model, algorithms=[SAM(), MixUp(1.0)], callbacks=targets, **split)

    made.fit()

    parts = 2 if split else 1
    for seen in (inputs, masks):
        for start in range(0, len(seen), 2 * parts):
            first = seen[start : start + parts]
            assert same(first, seen[start + parts : start + 2 * parts])
    assert len(inputs) == 6 * 2 * parts
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) > len(masks) / 3


def test_masks_that_are_reused_are_those_of_the_first_pass_and_count_once():
    made = trainer(
        mlp(dropout=0.5), algorithms=[SAM(), GyroDropout(sigma=12, tau=2)], check_effects=False
    )
    _, masks = hears(made.state.model)

    state = made.fit()

    assert all(same([one], [other]) for one, other in zip(masks[::2], masks[1::2], strict=True))
    assert not torch.equal(masks[0], masks[-1])
    assert state.model[2].steps == 6


def test_running_statistics_are_those_of_the_first_pass():
    model = conv_net()
    loader = batches(4, images=True)
    made = trainer(model, loader, algorithms=SAM(rho=5.0), max_duration="1ba")
    alone = conv_net()
    alone(loader[0][0])

    state = made.fit()

    assert torch.equal(state.model[1].running_mean, alone[1].running_mean)
    assert torch.equal(state.model[1].running_var, alone[1].running_var)
    assert state.model[1].num_batches_tracked == 1


def test_the_loss_is_that_of_the_first_pass():
    logger, plain = InMemoryLogger(), InMemoryLogger()

    trainer(algorithms=SAM(5.0), loggers=logger, max_duration="1ba").fit()
    trainer(algorithms=[], loggers=plain, max_duration="1ba").fit()

    assert logger.series("loss/train") == plain.series("loss/train")


def test_what_is_remembered_and_averaged_is_of_its_own_weights():
    seen = Watch(lambda state: weights(state.model), Event.BATCH_END)
    made = trainer(algorithms=[SAM(5.0), EMA(half_life=None, smoothing=0.0)], callbacks=seen)

    state = made.fit()

    assert_close(list(state.memory["EMA"]["average"].values()), seen.seen[-1])


def test_what_algorithms_remember_within_a_microbatch_they_remember_once():
    def counts(event, state):
        if event is not Event.AFTER_LOSS:
            return state
        return state.remember("counts", state.memory.get("counts", 0) + 1)

    assert trainer(algorithms=[SAM(), counts]).fit().memory["counts"] == 6


def test_nobody_draws_otherwise_because_of_it():
    with_it = trainer(algorithms=[SAM(), Draws()]).fit()

    assert with_it.memory["Draws"] == trainer(algorithms=[Draws()]).fit().memory["Draws"]


def test_what_acts_on_the_loss_acts_in_both_passes():
    loader = batches(dtype=DOUBLE)
    smoothed = partial(cross_entropy, label_smoothing=0.3)

    ours = trained(mlp(dtype=DOUBLE), loader, algorithms=[SAM(0.5), LabelSmoothing(0.3)])

    theirs = trained(mlp(dtype=DOUBLE), loader, algorithms=[SAM(0.5)], loss_fn=smoothed)
    assert_close(ours, theirs)


def test_frozen_parameters_stay_and_are_no_part_of_the_norm():
    model = mlp()
    model[0].requires_grad_(False)
    before = weights(model)

    ours = trained(model, algorithms=SAM(5.0))

    assert same(ours[:2], before[:2])
    assert not same(ours[2:], before[2:])


def test_two_optimizers_make_one_ball():
    def two(model):
        return [sgd(model[0].parameters()), sgd(model[3].parameters())]

    model = mlp(dtype=DOUBLE)
    loader = batches(dtype=DOUBLE)

    ours = trained(model, loader, algorithms=SAM(0.5), optimizers=two(model))

    assert_close(ours, by_hand(mlp(dtype=DOUBLE), loader, rho=0.5))


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
def test_after_an_interruption_in_the_second_pass_the_weights_are_its_own(error):
    loader = batches(images=True)
    whole = Fails(0, None)
    made = trainer(Fails(6, error), loader, algorithms=SAM(5.0), check_effects=False)
    two = trainer(whole, loader, algorithms=SAM(5.0), max_duration="2ba").fit()

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
def test_memory_that_runs_out_in_either_pass_has_both_repeated(whole):
    loader = batches(8, 8, images=True)
    options = {"algorithms": SAM(0.5), "max_duration": "1ba"}
    auto = trainer(Small(2, whole), loader, microbatch_size="auto", **options)
    given = trainer(Small(9), loader, microbatch_size=2, **options)

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
def test_a_loss_that_is_not_finite_in_either_pass_ends_the_run(at):
    made = trainer(loss_fn=breaks(at), algorithms=SAM())
    two = trainer(algorithms=SAM(), max_duration="2ba").fit()

    with pytest.raises(NonFiniteLossError, match="the loss of batch 2 was nan"):
        made.fit()

    assert same(weights(made.state.model), weights(two.model))


@pytest.mark.parametrize("at", [5, 6])
def test_a_batch_whose_loss_is_not_finite_in_either_pass_is_skipped_whole(at):
    loader = batches(12, images=True)
    without = trainer(conv_net(), loader[:2], algorithms=SAM(), max_duration="2ba").fit()
    made = trainer(
        conv_net(),
        loader,
        loss_fn=breaks(at),
        algorithms=SAM(),
        max_duration="3ba",
        nonfinite_loss="skip",
    )

    with pytest.warns(NonFiniteLossWarning, match="the loss of batch 2 was nan"):
        state = made.fit()

    assert same(weights(state.model), weights(without.model))


def test_a_run_may_be_saved_and_stopped_after_any_batch():
    saved = []
    asks = Asks(Event.BATCH_CHECKPOINT, 2, Control.SAVE | Control.STOP)
    made = trainer(
        algorithms=SAM(5.0),
        callbacks=asks,
        saver=lambda state: saved.append(weights(state.model)),
    )
    three = trainer(algorithms=SAM(5.0), max_duration="3ba").fit()

    made.fit()

    assert same(saved[0], weights(three.model))


# Requests to the loop


def test_it_is_the_plan_that_says_so():
    plan = trainer(algorithms=[SAM(), MixUp()]).plan

    (step,) = [step for step in plan.steps() if step.who == "SAM"]
    assert step.event is Event.BEFORE_TRAIN_BATCH
    assert step.writes == ("second_pass",)


def test_the_events_of_a_microbatch_fire_in_both_passes_and_the_others_once():
    trace = Trace()
    trainer(algorithms=SAM(interval=2), callbacks=trace, max_duration="2ba", grad_accum=2).fit()

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
    seen = Watch(lambda state: state.second_pass is None, Event.AFTER_DATALOADER, Event.BATCH_END)

    trainer(algorithms=SAM(interval=2), callbacks=seen).fit()

    assert all(seen.seen)


def test_two_that_ask_are_reported():
    with pytest.warns(AmbiguousOrderWarning, match="both write .*second_pass"):
        trainer(algorithms=[SAM(), SAM(name="again")])


def asks_for(weights_of):
    def ask(event, state):
        if event is not Event.BEFORE_TRAIN_BATCH:
            return state
        return state.evolve(second_pass=weights_of)

    return ask


def test_anyone_can_ask_for_gradients_elsewhere():
    def zero(state):
        return {"3.bias": torch.zeros_like(state.model[3].bias)}

    seen = Watch(lambda state: state.current_gradients()["3.bias"], Event.AFTER_TRAIN_BATCH)
    trainer(algorithms=asks_for(zero), callbacks=seen, max_duration="1ba").fit()

    model = mlp()
    with torch.no_grad():
        model[3].bias.zero_()
    inputs, targets = batches()[0]
    cross_entropy(model(inputs), targets).backward()
    assert torch.equal(seen.seen[0], model[3].bias.grad)


def test_weights_of_no_parameter_are_refused_by_name():
    ask = asks_for(lambda state: {"4.bias": torch.zeros(3)})

    with pytest.raises(
        ValueError, match=r"second_pass returned weights for \['4.bias'\], which are"
    ):
        trainer(algorithms=ask).fit()


def test_a_loop_that_is_not_ours_refuses_it_at_once():
    model = mlp()

    with pytest.raises(UnsupportedRequestError, match="SAM requests a second pass over the batch"):
        adapt_loop([SAM()], model, sgd(model.parameters()), loss_fn=cross_entropy)


def test_a_loop_that_is_not_ours_refuses_a_function_that_asks_at_the_first_batch():
    model = mlp()
    t = adapt_loop(asks_for(dict), model, sgd(model.parameters()), loss_fn=cross_entropy)

    with pytest.raises(UnsupportedRequestError, match="an algorithm requests a second pass"):
        next(t.epoch(batches()))


def test_its_turns_are_in_the_timeline():
    made = trainer(algorithms=SAM(interval=3))

    assert str(made.timeline()) == "SAM  gradients  from 0ep to 1ba, from 1ep to 4ba"
