"""SWA in the loop: its window, its learning rate, and statistics that fit the average."""

import warnings
from functools import partial
from itertools import product

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.testing import assert_close

from composable import Event, IdleAlgorithmWarning
from composable.algorithms import SWA
from composable.algorithms.swa import NothingAveragedWarning
from composable.functional import recompute_batch_norm_statistics
from composable.loggers import InMemoryLogger
from composable.models import Classifier
from composable.optim import linear
from tests.support.data import batches, stream
from tests.support.models import conv_net, mlp, same, weights
from tests.support.observers import Watch
from tests.support.outcomes import differences
from tests.support.runs import make_trainer, sgd, training_weights

IMAGES = batches(images=True)
ANNEALED = SWA(
    swa_start="0dur",
    swa_end="1dur",
    update_interval="1ba",
    schedule_swa_lr=True,
    anneal_steps=4,
    swa_lr=0.02,
)


def window(start, end):
    return SWA(swa_start=start, swa_end=end, update_interval="1ba")


def average_of(state):
    return dict(state.averages["SWA"])


def rate_of(state):
    return state.optimizers[0].param_groups[0]["lr"]


# --- the learning rate ---


def torch_recipe(loader, model, *, start, swa_lr, strategy, steps, epochs):
    """Train in a plain loop by the recipe of torch.optim.swa_utils."""
    averaged, optimizer, rates = AveragedModel(model, use_buffers=True), sgd(model.parameters()), []
    schedule = SWALR(optimizer, swa_lr, anneal_epochs=steps, anneal_strategy=strategy)
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
def test_weights_rates_and_mean_are_those_of_the_torch_recipe(strategy, steps):
    loader, model, logger = batches(dtype=torch.float64), mlp(dtype=torch.float64), InMemoryLogger()
    recipe = {"start": 2, "swa_lr": 0.01, "strategy": strategy, "steps": steps, "epochs": 6}
    averaged, rates = torch_recipe(loader, model, **recipe)

    algorithm = SWA(
        swa_start="2ep",
        swa_end="6ep",
        schedule_swa_lr=True,
        anneal_strategy=strategy,
        anneal_steps=steps,
        swa_lr=0.01,
    )
    trainer = make_trainer(
        mlp(dtype=torch.float64), loader, algorithms=algorithm, loggers=logger, max_duration="6ep"
    )
    state = trainer.fit()

    assert logger.series("lr") == pytest.approx(rates)
    assert_close(training_weights(trainer), weights(model))
    assert_close(weights(state.model), weights(averaged))
    assert_close(average_of(state), dict(averaged.state_dict()))
    assert rates[0] == 0.1
    assert (min(rates) == pytest.approx(0.01)) is (steps < 10)


def test_learning_rate_is_annealed_from_that_of_the_schedule_for_the_step_alone():
    logger, plain = InMemoryLogger(), InMemoryLogger()
    before, after = (
        Watch(Event[f"{at}_OPTIMIZER_STEP"], read=rate_of) for at in ("BEFORE", "AFTER")
    )
    options = {"loggers": logger, "callbacks": [before, after]}

    make_trainer(algorithms=ANNEALED, schedulers=linear(1.0, 0.5), **options).fit()
    make_trainer(schedulers=linear(1.0, 0.5), loggers=plain).fit()

    shares, scheduled = [0, 0.25, 0.5, 0.75, 1, 1], plain.series("lr")
    expected = [rate * (1 - s) + 0.02 * s for s, rate in zip(shares, scheduled, strict=True)]
    assert logger.series("lr") == after.values == pytest.approx(expected)
    assert before.values == scheduled


@pytest.mark.parametrize("every_batch", [True, False])
def test_schedulers_of_torch_do_not_see_the_annealed_rate(every_batch):
    step = partial(StepLR, step_size=1, gamma=0.5)
    options = {"schedulers": step, "step_schedulers_every_batch": every_batch}

    annealed, plain = (
        make_trainer(algorithms=ANNEALED, **options).fit(),
        make_trainer(**options).fit(),
    )

    assert rate_of(annealed) == rate_of(plain)
    assert not same(weights(annealed.model), weights(plain.model))


def test_tensor_learning_rate_stays_the_same_tensor():
    def run(lr):
        optimizers = partial(torch.optim.SGD, lr=lr, foreach=False)
        return make_trainer(algorithms=ANNEALED, optimizers=optimizers, callbacks=rates).fit()

    rates = Watch(Event.AFTER_OPTIMIZER_STEP, read=rate_of)
    floats = run(0.1)
    rates.seen.clear()
    state = run(torch.tensor(0.1))

    assert all(rate is rate_of(state) for rate in rates.values)
    assert rate_of(state) == torch.tensor(0.1)
    assert_close(weights(state.model), weights(floats.model))


def test_every_parameter_group_is_annealed():
    model, logger = mlp(), InMemoryLogger()
    groups = [{"params": model[0].parameters(), "lr": 0.4}, {"params": model[3].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.1)

    make_trainer(model, algorithms=ANNEALED, optimizers=optimizer, loggers=logger).fit()

    assert logger.series("lr")[:3] == pytest.approx([0.4, 0.305, 0.21])
    assert logger.series("lr/group1")[:3] == pytest.approx([0.1, 0.08, 0.06])
    assert logger.series("lr")[-1] == logger.series("lr/group1")[-1] == pytest.approx(0.02)


def test_error_in_a_step_restores_the_learning_rate():
    def fail(closure=None):
        raise KeyError

    made = make_trainer(algorithms=ANNEALED)
    (optimizer,) = made.fit(duration="2ba").optimizers
    optimizer.step = fail

    with pytest.raises(KeyError):
        made.fit(duration="2ba")

    assert rate_of(made.state) == 0.1


# --- statistics of batch norms ---


def test_statistics_are_recomputed_on_the_batches_after_the_end():
    seen = Watch(Event.BATCH_END, read=lambda s: weights(s.model))
    trainer = make_trainer(conv_net(), IMAGES, algorithms=window("1ba", "4ba"), callbacks=seen)
    state = trainer.fit()

    model, average = conv_net(), average_of(state)
    model.load_state_dict(average)
    inputs = [IMAGES[1][0], IMAGES[2][0]]
    assert not differences(average, recompute_batch_norm_statistics(model, inputs).state_dict())
    model[4].p = 0.0  # the statistics are before the dropout, but it draws
    update_bn(inputs, model)
    assert_close(average, dict(model.state_dict()))
    first = [named["0.weight"] for named in seen.values[:4]]
    assert_close(average["0.weight"], torch.stack(first).mean(0))
    assert same(weights(state.model), average)
    assert same(training_weights(trainer), weights(make_trainer(conv_net(), IMAGES).fit().model))


def test_statistics_are_those_of_augmented_batches_that_are_not_mixed():
    def shift(event, state):
        if event is Event.AFTER_DATALOADER:
            return state.with_batch(inputs=state.inputs + 1)
        if event is Event.BEFORE_TRAIN_BATCH:
            return state.with_batch(inputs=state.inputs * 0)
        return state

    algorithm = window("0ba", "1ba")
    state = make_trainer(
        conv_net(), IMAGES, algorithms=[algorithm, shift], max_duration="2ba"
    ).fit()

    model = algorithm.averaged_model(state)
    expected = recompute_batch_norm_statistics(model, [IMAGES[1][0] + 1])
    assert not differences(average_of(state), expected.state_dict())


def test_model_that_takes_the_whole_batch_is_called_with_it():
    algorithm = window("1ba", "4ba")
    plain = make_trainer(conv_net(), IMAGES, algorithms=algorithm).fit()

    state = make_trainer(Classifier(conv_net()), IMAGES, algorithms=algorithm, loss_fn=None).fit()

    ours = {name.removeprefix("module."): t for name, t in average_of(state).items()}
    assert not differences(ours, average_of(plain))


def test_model_without_batch_norm_needs_no_extra_forward_pass():
    calls, model = [], mlp()
    model.register_forward_pre_hook(lambda *_: calls.append(0))

    make_trainer(model, algorithms=window("1ba", "2ba")).fit()

    assert len(calls) == 6


def test_statistics_are_recomputed_again_when_averaging_restarts():
    algorithm = window("0.2dur", "0.6dur")
    made = make_trainer(conv_net(), IMAGES, algorithms=algorithm, max_duration="6ba")
    seen = [made.fit().memory["SWA"]["seen"]]
    made.fit(duration="6ba")  # of twelve batches, half are done
    seen.append(made.state.memory["SWA"]["seen"])

    model = algorithm.averaged_model(made.state)
    expected = recompute_batch_norm_statistics(model, [IMAGES[i % 3][0] for i in range(8, 12)])
    assert seen == [2, 4]
    assert not differences(average_of(made.state), expected.state_dict())


# --- runs in which nothing is averaged ---


def test_run_too_short_to_average_evaluates_the_weights():
    options = {"loader": batches(16, size=1), "max_duration": "3ep", "eval_dataloader": batches(4)}
    message = (
        r"SWA will average nothing: .*'1ep' lies between .*'0.7dur' and .*'0.97dur' of a run "
        r"of 3ep. pass a shorter update_interval"
    )
    with pytest.warns(NothingAveragedWarning, match=message):
        state = make_trainer(**options, algorithms=SWA()).fit()

    assert state.metrics["eval"] == make_trainer(**options).fit().metrics["eval"]


SCHEDULES = [
    *(("1ep", "0.7dur", "0.97dur", epochs) for epochs in ("1ep", "2ep", "3ep", "20ep")),
    ("7ba", "0.7dur", "0.97dur", "3ep"),
    ("7ba", "0.9dur", "1dur", "2ep"),
    ("2ep", "3ba", "6ba", "2ep"),
    ("2ep", "3ba", "5ba", "2ep"),
    ("1ep", "1ep", "3ba", "2ep"),
    ("1ep", "0.7dur", "1dur", "1ep"),
    ("9ba", "0.7dur", "1dur", "7ba"),
]
LISTS = [*product([batches(2, 1), batches(16, 1)], SCHEDULES)]


@pytest.mark.filterwarnings("ignore::composable.data.order.ReplayedBatchesWarning")
@pytest.mark.parametrize(
    ("loader", "schedule"), [*LISTS, *product([stream(16, 1)], SCHEDULES[1:3])]
)
def test_warns_exactly_where_nothing_is_averaged(loader, schedule):
    interval, start, end, length = schedule
    algorithm = SWA(swa_start=start, swa_end=end, update_interval=interval)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        state = make_trainer(loader=loader, algorithms=algorithm, max_duration=length).fit()

    kinds = {one.category for one in seen}
    warned = kinds & {NothingAveragedWarning, IdleAlgorithmWarning}
    assert bool(warned) is ("SWA" not in state.memory)


# --- cycles ---
