"""SWA in the loop: a mean of weights, its learning rate, and statistics that fit it."""

import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.testing import assert_close

from composable import Event, IdleAlgorithmWarning, IncompatibleAlgorithmsError
from composable.algorithms import EMA, SWA
from composable.algorithms.swa import NothingAveragedWarning
from composable.functional import recompute_batch_norm_statistics, swa
from composable.integrations import adapt_loop
from composable.integrations.external_loop import UnsupportedRequestError
from composable.loggers import InMemoryLogger
from composable.optim import linear
from composable.trainer.evaluation import evaluation_mode
from tests.support.runs import Watch, batches, conv_net, mlp, same, sgd, stream, trainer, weights

EARLY = {"swa_start": "0dur", "swa_end": "1dur"}


def named(model):
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def run(algorithm, model=None, loader=None, **options):
    """Return the state after a run, and the weights after each batch and after each epoch."""
    watch = Watch(lambda s: named(s.model), Event.BATCH_END)
    epochs = Watch(lambda s: named(s.model), Event.EPOCH_END)
    made = trainer(model, loader, algorithms=algorithm, callbacks=[watch, epochs], **options)
    return made.fit(), watch.seen, epochs.seen


def mean(seen):
    average = seen[0]
    for count, current in enumerate(seen):
        average = swa(average, current, count)
    return average


def average_of(state):
    return dict(state.memory["SWA"]["average"])


def equal(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


# What is averaged


def test_the_weights_after_each_batch_are_averaged():
    state, seen, _ = run(SWA(**EARLY, update_interval="1ba"))

    assert state.memory["SWA"]["count"] == len(seen) == 6
    assert equal(average_of(state), mean(seen))


def test_by_default_the_weights_after_each_epoch_are():
    state, _, seen = run(SWA(**EARLY), max_duration="4ep")

    assert state.memory["SWA"]["count"] == len(seen) == 4
    assert equal(average_of(state), mean(seen))


@pytest.mark.parametrize(("interval", "taken"), [("2ba", [1, 3, 5]), ("4ba", [3]), ("6ba", [5])])
def test_at_multiples_of_the_interval(interval, taken):
    state, seen, _ = run(SWA(**EARLY, update_interval=interval))

    assert equal(average_of(state), mean([seen[i] for i in taken]))


@pytest.mark.parametrize(
    ("start", "end", "taken"),
    [
        ("0.5dur", "1dur", [2, 3, 4, 5]),  # from the end of batch 2 on, which is at 0.5
        ("3ba", "6ba", [2, 3, 4, 5]),
        ("1ep", "5ba", [2, 3, 4]),  # batch 4 begins before 5ba, and ends there
        ("0.4dur", "0.7dur", [2, 3, 4]),
        ("0dur", "0.01dur", [0]),
    ],
)
def test_from_its_start_to_the_batch_that_begins_before_its_end(start, end, taken):
    algorithm = SWA(swa_start=start, swa_end=end, update_interval="1ba")

    state, seen, _ = run(algorithm)

    assert equal(average_of(state), mean([seen[i] for i in taken]))


def test_the_last_epoch_of_a_run_is_averaged_where_the_end_is_its_end():
    state, _, seen = run(SWA(swa_start="0.5dur", swa_end="1dur"), max_duration="4ep")

    assert equal(average_of(state), mean(seen[1:]))


def test_training_goes_on_with_its_own_weights():
    state, _, _ = run(SWA(**EARLY, update_interval="1ba"))

    assert same(weights(state.model), weights(trainer().fit().model))


def test_evaluations_and_predictions_use_the_average():
    algorithm, loader = SWA(**EARLY, update_interval="1ba"), batches(4)
    made = trainer(algorithms=algorithm, eval_dataloader=loader)
    state = made.fit()

    (inputs, targets), model = loader[0], algorithm.averaged_model(state)
    with evaluation_mode(model):
        outputs = model(inputs)
    assert torch.equal(made.predict(loader)[0], outputs)
    loss = float(cross_entropy(outputs, targets))
    assert state.metrics["eval"]["loss"] == pytest.approx(loss)
    assert same(weights(made.state.model), weights(trainer().fit().model))


def test_before_the_first_update_evaluations_use_the_weights():
    seen = Watch(lambda s: "SWA" in s.memory, Event.EVAL_END)
    options = {"eval_dataloader": batches(4), "max_duration": "4ep"}
    late = trainer(algorithms=SWA(swa_start="3ep", swa_end="1dur"), callbacks=seen, **options)
    losses, plain = InMemoryLogger(), InMemoryLogger()

    late.add_callback(losses)
    late.fit()
    trainer(loggers=plain, **options).fit()

    ours, theirs = losses.series("metrics/eval/loss"), plain.series("metrics/eval/loss")
    assert seen.seen == [False, False, True, True]
    assert ours[:2] == theirs[:2]
    assert ours[2] == theirs[2]  # the mean of one model is that model
    assert ours[3] != theirs[3]


def test_a_second_fit_goes_on_with_the_average():
    made = trainer(algorithms=SWA(swa_start="1ba", swa_end="9ba", update_interval="1ba"))
    made.fit(duration="3ba")
    made.fit(duration="3ba")

    whole, _, _ = run(SWA(swa_start="1ba", swa_end="9ba", update_interval="1ba"))
    assert equal(average_of(made.state), average_of(whole))


def test_an_average_that_does_not_exist_is_an_error():
    with pytest.raises(KeyError):
        SWA().averaged_model(trainer().state)


# Against torch's own


def with_torch(loader, optimizer, model, *, start, swa_lr, strategy, steps, epochs):
    """Train in a plain loop by the recipe of torch.optim.swa_utils."""
    averaged = AveragedModel(model, use_buffers=True)
    schedule, rates = SWALR(optimizer, swa_lr, anneal_epochs=steps, anneal_strategy=strategy), []
    optimizer.param_groups[0]["lr"] = 0.1  # without annealing it acts when it is made
    for epoch in range(1, epochs + 1):
        for inputs, targets in loader:
            rates.append(optimizer.param_groups[0]["lr"])
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        if epoch >= start:
            averaged.update_parameters(model)
            schedule.step()
    return averaged.module, rates


@pytest.mark.parametrize("strategy", ["linear", "cos"])
@pytest.mark.parametrize("steps", [0, 1, 3, 10])
def test_weights_rates_and_mean_are_those_of_torchs_recipe(strategy, steps):
    loader, model, logger = batches(dtype=torch.float64), mlp(dtype=torch.float64), InMemoryLogger()
    averaged, rates = with_torch(
        loader,
        sgd(model.parameters()),
        model,
        start=2,
        swa_lr=0.01,
        strategy=strategy,
        steps=steps,
        epochs=6,
    )

    algorithm = SWA(
        swa_start="2ep",
        swa_end="6ep",
        schedule_swa_lr=True,
        anneal_strategy=strategy,
        anneal_steps=steps,
        swa_lr=0.01,
    )
    state = trainer(
        mlp(dtype=torch.float64), loader, algorithms=algorithm, loggers=logger, max_duration="6ep"
    ).fit()

    assert logger.series("lr") == pytest.approx(rates)
    assert_close(dict(state.model.state_dict()), dict(model.state_dict()))
    assert_close(average_of(state), dict(averaged.state_dict()))
    assert rates[0] == 0.1
    assert (min(rates) == pytest.approx(0.01)) is (steps < 10)


def test_the_rate_that_was_given_is_used():
    logger = InMemoryLogger()
    algorithm = SWA(
        **EARLY, update_interval="1ba", schedule_swa_lr=True, anneal_steps=0, swa_lr=0.003
    )

    trainer(algorithms=algorithm, loggers=logger).fit()

    assert logger.series("lr") == pytest.approx([0.1, *[0.003] * 5])


# The learning rate

GOES_DOWN = {
    **EARLY,
    "update_interval": "1ba",
    "schedule_swa_lr": True,
    "anneal_steps": 4,
    "swa_lr": 0.02,
}


def test_it_goes_from_what_the_schedule_says():
    ours, plain = InMemoryLogger(), InMemoryLogger()
    trainer(algorithms=SWA(**GOES_DOWN), schedulers=linear(1.0, 0.5), loggers=ours).fit()
    trainer(schedulers=linear(1.0, 0.5), loggers=plain).fit()

    shares = [0, 0.25, 0.5, 0.75, 1, 1]
    expected = [r * (1 - s) + 0.02 * s for s, r in zip(shares, plain.series("lr"), strict=True)]
    assert ours.series("lr") == pytest.approx(expected)


@pytest.mark.parametrize("every_batch", [True, False])
def test_torchs_schedulers_never_see_it(every_batch):
    options = {
        "schedulers": partial(StepLR, step_size=1, gamma=0.5),
        "step_schedulers_every_batch": every_batch,
    }
    made, plain = trainer(algorithms=SWA(**GOES_DOWN), **options), trainer(**options)

    made.fit()
    plain.fit()

    for one, other in zip(made.state.optimizers, plain.state.optimizers, strict=True):
        assert one.param_groups[0]["lr"] == other.param_groups[0]["lr"]
    assert not same(weights(made.state.model), weights(plain.state.model))


def test_whoever_looks_after_the_step_sees_the_rate_that_was_used():
    def rate(state):
        return state.optimizers[0].param_groups[0]["lr"]

    seen = Watch(rate, Event.AFTER_OPTIMIZER_STEP)
    before = Watch(rate, Event.BEFORE_OPTIMIZER_STEP)

    trainer(algorithms=SWA(**GOES_DOWN), callbacks=[seen, before]).fit()

    assert seen.seen == pytest.approx([0.1, 0.08, 0.06, 0.04, 0.02, 0.02])
    assert before.seen == [0.1] * 6


def test_a_rate_that_is_a_tensor_stays_one():
    rates = Watch(lambda s: s.optimizers[0].param_groups[0]["lr"], Event.AFTER_OPTIMIZER_STEP)
    own = torch.tensor(0.1)

    made = trainer(
        algorithms=SWA(**GOES_DOWN),
        optimizers=partial(torch.optim.SGD, lr=own, foreach=False),
        callbacks=rates,
    )
    made.fit()

    (group,) = made.state.optimizers[0].param_groups
    assert all(rate is group["lr"] for rate in rates.seen)
    assert group["lr"] == torch.tensor(0.1)
    floats = trainer(algorithms=SWA(**GOES_DOWN), optimizers=partial(torch.optim.SGD, lr=0.1))
    assert_close(weights(made.state.model), weights(floats.fit().model))


def test_every_group_goes_to_it():
    model = mlp()
    groups = [{"params": model[0].parameters(), "lr": 0.4}, {"params": model[3].parameters()}]
    logger = InMemoryLogger()

    optimizer = torch.optim.SGD(groups, lr=0.1)
    trainer(model, algorithms=SWA(**GOES_DOWN), optimizers=optimizer, loggers=logger).fit()

    assert logger.series("lr")[:3] == pytest.approx([0.4, 0.305, 0.21])
    assert logger.series("lr/group1")[:3] == pytest.approx([0.1, 0.08, 0.06])
    assert logger.series("lr")[-1] == logger.series("lr/group1")[-1] == pytest.approx(0.02)


def test_after_an_error_in_a_step_the_rate_is_its_own():
    class Fails(torch.optim.SGD):
        def step(self, closure=None):
            raise KeyError

    made = trainer(algorithms=SWA(**GOES_DOWN), optimizers=partial(sgd.func, lr=0.1))
    made.fit(duration="2ba")
    (optimizer,) = made.state.optimizers
    optimizer.step = partial(Fails.step, optimizer)

    with pytest.raises(KeyError):
        made.fit(duration="2ba")

    assert optimizer.param_groups[0]["lr"] == 0.1


def test_anyone_can_ask_for_another_rate_for_a_step():
    def halve(event, state):
        if event is not Event.BEFORE_OPTIMIZER_STEP:
            return state
        return state.evolve(lr_override=lambda rate: rate / 2)

    half = partial(torch.optim.SGD, lr=0.05, momentum=0.9)

    ours = trainer(algorithms=halve).fit()

    assert same(weights(ours.model), weights(trainer(optimizers=half).fit().model))


def test_what_is_asked_for_one_step_is_of_that_step():
    def once(event, state):
        if event is Event.BEFORE_OPTIMIZER_STEP and state.timestamp.batch == 2:
            return state.evolve(lr_override=lambda rate: rate / 2)
        return state

    logger = InMemoryLogger()
    trainer(algorithms=once, loggers=logger).fit()

    assert logger.series("lr") == [0.1, 0.1, 0.05, 0.1, 0.1, 0.1]


# Statistics of batch norms


def test_statistics_are_computed_anew_on_the_batches_after_the_end():
    algorithm, loader = (
        SWA(swa_start="1ba", swa_end="4ba", update_interval="1ba"),
        batches(images=True),
    )
    state, seen, _ = run(algorithm, conv_net(), loader)

    model = conv_net()
    model.load_state_dict(mean(seen[:4]))
    theirs = recompute_batch_norm_statistics(model, [loader[1][0], loader[2][0]])
    assert equal(average_of(state), dict(theirs.state_dict()))
    model[4].p = 0.0  # the statistics are before the dropout, but it draws
    update_bn([inputs for inputs, _ in loader[1:]], model)
    assert_close(average_of(state), dict(model.state_dict()))
    assert same(weights(state.model), weights(trainer(conv_net(), loader).fit().model))


def test_until_then_they_are_averaged():
    algorithm = SWA(**EARLY, update_interval="1ba")

    state, seen, _ = run(algorithm, conv_net(), batches(images=True))

    assert equal(average_of(state), mean(seen))


def test_they_are_of_the_batch_as_it_was_augmented_and_not_mixed():
    def shift(event, state):
        if event is Event.AFTER_DATALOADER:
            return state.with_batch(inputs=state.inputs + 1)
        if event is Event.BEFORE_TRAIN_BATCH:
            return state.with_batch(inputs=state.inputs * 0)
        return state

    algorithm = SWA(swa_start="0ba", swa_end="1ba", update_interval="1ba")
    loader = batches(images=True)
    made = trainer(conv_net(), loader, algorithms=[algorithm, shift], max_duration="2ba")
    state = made.fit()

    model = algorithm.averaged_model(state)
    shifted = recompute_batch_norm_statistics(model, [loader[1][0] + 1])
    assert equal(average_of(state), dict(shifted.state_dict()))


def test_a_model_that_takes_the_whole_batch_is_called_with_it():
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = conv_net()

        def forward(self, batch):
            return self.layers(batch[0])

        def loss(self, outputs, batch):
            return cross_entropy(outputs, batch[1])

    loader = batches(images=True)
    algorithm = SWA(swa_start="1ba", swa_end="4ba", update_interval="1ba")
    plain, _, _ = run(algorithm, conv_net(), loader)

    state, _, _ = run(algorithm, WithLoss(), loader, loss_fn=None)

    ours = {name.removeprefix("layers."): t for name, t in average_of(state).items()}
    assert equal(ours, average_of(plain))


def test_a_model_without_batch_norm_costs_no_pass_more():
    calls = []
    model = mlp()
    model.register_forward_pre_hook(lambda *_: calls.append(0))

    run(SWA(swa_start="1ba", swa_end="2ba", update_interval="1ba"), model)

    assert len(calls) == 6


def test_where_averaging_begins_again_so_do_the_statistics():
    algorithm = SWA(swa_start="0.2dur", swa_end="0.6dur", update_interval="1ba")
    loader = batches(images=True)
    made = trainer(conv_net(), loader, algorithms=algorithm, max_duration="6ba")
    seen = [made.fit().memory["SWA"]["seen"]]
    made.fit(duration="6ba")  # of twelve batches, half are done
    seen.append(made.state.memory["SWA"]["seen"])

    model = algorithm.averaged_model(made.state)
    last = [loader[i % 3][0] for i in range(8, 12)]
    expected = recompute_batch_norm_statistics(model, last)
    assert seen == [2, 4]
    assert equal(average_of(made.state), dict(expected.state_dict()))


# Runs in which nothing is averaged

SHORT = {"loader": batches(16, size=1), "max_duration": "3ep"}


def test_in_a_run_too_short_for_it_a_warning_says_so_and_the_weights_are_evaluated():
    made = trainer(**SHORT, algorithms=SWA(), eval_dataloader=batches(4))

    with pytest.warns(
        NothingAveragedWarning,
        match=r"SWA will average nothing: .*'1ep' lies between .*'0.7dur' and .*'0.97dur' of a run "
        r"of 3ep. pass a shorter update_interval",
    ):
        state = made.fit()

    plain = trainer(**SHORT, eval_dataloader=batches(4)).fit()
    assert "SWA" not in state.memory
    assert state.metrics["eval"] == plain.metrics["eval"]


SCHEDULES = [
    ({}, {"max_duration": "3ep"}),
    ({}, {"max_duration": "1ep"}),
    ({}, {"max_duration": "20ep"}),
    ({"update_interval": "7ba"}, {"max_duration": "3ep"}),
    ({"update_interval": "7ba", "swa_start": "0.9dur", "swa_end": "1dur"}, {"max_duration": "2ep"}),
    ({"update_interval": "2ep", "swa_start": "3ba", "swa_end": "6ba"}, {"max_duration": "2ep"}),
    ({"update_interval": "2ep", "swa_start": "3ba", "swa_end": "5ba"}, {"max_duration": "2ep"}),
    ({"swa_start": "1ep", "swa_end": "3ba"}, {"max_duration": "2ep"}),
    ({"swa_end": "1dur"}, {"max_duration": "1ep"}),
    ({"update_interval": "9ba", "swa_end": "1dur"}, {"max_duration": "7ba"}),
    ({}, {"max_duration": "3ep", "loader": stream(16, size=1)}),
    ({}, {"max_duration": "2ep", "loader": stream(16, size=1)}),
]


@pytest.mark.filterwarnings("ignore::composable.data.order.ReplayedBatchesWarning")
@pytest.mark.parametrize(("schedule", "options"), SCHEDULES)
@pytest.mark.parametrize("length", [2, 16])
def test_the_warning_comes_where_nothing_will_be_averaged_and_nowhere_else(
    schedule, options, length
):
    options = {"loader": batches(length, size=1), **options}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        state = trainer(**options, algorithms=SWA(**schedule)).fit()

    warned = any(one.category is NothingAveragedWarning for one in seen)
    idle = any(one.category is IdleAlgorithmWarning for one in seen)
    assert (warned or idle) is ("SWA" not in state.memory)


# With others


def test_with_ema_it_is_refused():
    with pytest.raises(
        IncompatibleAlgorithmsError, match="both replace the model that is evaluated"
    ):
        trainer(algorithms=[EMA("2ba"), SWA()])


def test_a_rate_of_its_own_is_refused_in_a_loop_that_is_not_ours():
    model = mlp()
    with pytest.raises(
        UnsupportedRequestError, match="SWA requests a step with other learning rates"
    ):
        adapt_loop([SWA(**GOES_DOWN)], model, sgd(model.parameters()), loss_fn=cross_entropy)


def test_a_function_that_asks_for_a_rate_is_refused_there_at_the_first_step():
    model = mlp()
    optimizer = sgd(model.parameters())

    def ask(event, state):
        return state.evolve(lr_override=lambda rate: rate)

    t = adapt_loop(ask, model, optimizer, loss_fn=cross_entropy)
    epoch = t.epoch(batches())
    inputs, _ = next(epoch)
    t.loss(model(inputs)).backward()

    with pytest.raises(
        UnsupportedRequestError, match="an algorithm requests a step with other learning"
    ):
        optimizer.step()


def test_the_timeline_says_when():
    made = trainer(algorithms=SWA(), max_duration="100ep")

    expected = "SWA  average  from 70ep to 100ep, averaging every 1ep until 0.97dur"
    assert str(made.timeline()) == expected
