"""One trial: what it records, what it refuses, and that it writes nothing."""

import math
import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from composable import Control, Event
from composable.algorithms import EMA, MixUp
from composable.callbacks import CheckpointSaver
from composable.comparison import trial as trials
from composable.comparison.arms import Arm
from composable.comparison.building import BuildError
from composable.comparison.trial import Compared, yield_reports
from composable.core.algorithm import FunctionAlgorithm
from composable.loggers import JSONLinesLogger
from tests.comparison.small import descend
from tests.support.comparison import BATCHES, build, examples, loop_of, trial
from tests.support.observers import Asks

PLAIN = {"algorithms": []}


def run_trial(build, arguments, trial, **options):
    arm = SimpleNamespace(arguments=lambda settings: arguments)
    return trials.run_trial(Compared(function=build, arms={trial.arm: arm}, **options), trial)


def test_records_each_evaluation_of_the_trainer():
    result = run_trial(build, PLAIN, trial(seed=3, duration="3ep"))

    assert (result.outcome, result.error, result.batches) == ("finished", None, 3 * BATCHES)
    assert [one.batch for one in result.curve] == [BATCHES, 2 * BATCHES, 3 * BATCHES]
    assert set(result.curve[-1].metrics) == {"eval/loss", "eval/accuracy"}
    assert result.trial == trial(seed=3, duration="3ep")
    torch.manual_seed(3)
    state = build([], 3, max_duration="3ep").fit()
    assert result.curve[-1].metrics["eval/loss"] == state.metrics["eval"]["loss"]


def test_a_seed_determines_the_results_and_another_one_gives_others():
    losses = [
        run_trial(build, PLAIN, trial(seed=seed)).curve[-1].metrics["eval/loss"]
        for seed in (0, 0, 1)
    ]

    assert losses[0] == losses[1] != losses[2]


def test_the_function_of_an_arm_draws_by_the_seed_of_the_trial():
    drawn = []
    arm = Arm("plain", lambda: drawn.append(torch.rand(()).item()) or [])
    for seed in (0, 0, 1):
        torch.rand(1)
        trials.run_trial(Compared(function=build, arms={"plain": arm}), trial(seed, "1ba"))

    assert drawn[0] == drawn[1] != drawn[2]


def test_restores_the_global_generators():
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    run_trial(build, PLAIN, trial())

    assert torch.equal(torch.rand(2), expected)


def test_evaluators_due_at_other_times_give_their_own_results_only():
    from composable import Evaluator

    loader = DataLoader(examples(), batch_size=16)
    several = [
        Evaluator("validation", loader, eval_interval="3ba"),
        Evaluator("test", loader, eval_interval="1ep"),
    ]
    curve = run_trial(
        partial(build, eval_dataloader=several), PLAIN, trial(duration=f"{2 * BATCHES}ba")
    ).curve

    labels = [{name.partition("/")[0] for name in one.metrics} for one in curve]
    assert [one.batch for one in curve] == [3, 6, 9, 12]
    assert labels == [{"validation"}, {"validation", "test"}] * 2


def test_a_run_that_ends_early_is_stopped():
    stop = Asks(Event.BATCH_END, 3, Control.STOP)
    result = run_trial(partial(build, callbacks=stop), PLAIN, trial())

    assert (result.outcome, result.batches) == ("stopped", 4)
    assert result.curve[-1].batch == 4


# --- the duration ---


def takes(algorithms, seed, max_duration):
    assert max_duration == "5ba"
    return build(algorithms, seed, max_duration=max_duration)


def takes_none(algorithms, seed):
    return build(algorithms, seed, max_duration="7ep")


@pytest.mark.parametrize("function", [takes, takes_none])
def test_the_duration_is_that_of_the_trial_whether_the_function_takes_it(function):
    assert run_trial(function, PLAIN, trial(duration="5ba")).batches == 5


# --- what goes wrong in a trial ---


def test_a_loss_that_is_not_finite_diverges():
    def loss_fn(outputs, targets):
        return cross_entropy(outputs, targets) * math.inf

    result = run_trial(partial(build, loss_fn=loss_fn), PLAIN, trial())

    assert (result.outcome, result.batches, result.curve) == ("diverged", 0, ())
    assert result.error.startswith("NonFiniteLossError: the loss of batch 0 was inf")


def test_a_needed_result_that_is_not_finite_diverges_and_ends_the_run():
    metrics = {"ratio": lambda outputs, targets: torch.tensor(math.nan)}
    function = partial(build, metrics=metrics)
    result = run_trial(function, PLAIN, trial())

    assert (result.outcome, result.batches) == ("diverged", BATCHES)
    assert result.error == f"eval/ratio is nan after batch {BATCHES}"
    assert run_trial(function, PLAIN, trial(), metrics=("eval/loss",)).outcome == "finished"


def fail(event, state):
    raise OSError("the disk is gone")


@pytest.mark.parametrize("where", ["build", "fit"])
def test_an_exception_fails_the_trial(where):
    def raises(algorithms, seed):
        if where == "build":
            fail(None, None)
        return build(algorithms, seed, callbacks=[lambda event, state, logger: fail(event, state)])

    result = run_trial(raises, PLAIN, trial())

    assert result.outcome == "failed"
    assert result.error.startswith("OSError: the disk is gone")


def test_an_interrupt_is_not_a_failure():
    def interrupted(algorithms, seed):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_trial(interrupted, PLAIN, trial())


def test_names_the_results_that_are_logged():
    with pytest.raises(BuildError, match=r"metric='test/accuracy' .* log 'eval/accuracy', 'eval/l"):
        run_trial(build, PLAIN, trial(), metrics=("test/accuracy",))


# --- faults of the function ---


BUILT = []


def trained(algorithms, seed):
    trainer = build(algorithms, seed)
    trainer.fit()
    return trainer


def elsewhere(algorithms, seed):
    return BUILT[0]


FAULTS = {
    "returns no Trainer": (lambda algorithms, seed: None, "must return a Trainer"),
    "another seed": (lambda algorithms, seed: build(algorithms, 7), "seed=0 .* seed=7; pass it"),
    "no seed": (lambda algorithms, seed: build(algorithms, None), "seed=None; pass it on"),
    "no algorithms": (lambda algorithms, seed: build([], seed), r"lacks \[MixUp"),
    "other algorithms": (lambda algorithms, seed: build([MixUp(0.7)], seed), r"lacks \[MixUp"),
    "another duration": (
        lambda algorithms, seed, max_duration: build(algorithms, seed, max_duration="9ep"),
        "max_duration='2ep' .* max_duration='9ep'",
    ),
    "trained": (trained, "has trained on 12 batches"),
    "built before": (elsewhere, "was built before it was called"),
    "no evaluation": (
        lambda algorithms, seed: build(algorithms, seed, eval_dataloader=None),
        "never evaluates",
    ),
    "no interval": (
        lambda algorithms, seed: build(algorithms, seed, eval_interval=None),
        "never evaluates",
    ),
    "no parameter": (lambda seed: build([], seed), "unexpected keyword argument 'algorithms'"),
    "rollback": (
        lambda algorithms, seed: build(
            algorithms, seed, nonfinite_loss="rollback", save_folder="unused"
        ),
        "nonfinite_loss='rollback'",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_refuses_a_function_that_cannot_be_compared(fault):
    function, message = FAULTS[fault]
    BUILT[:] = [build([], 0)]

    with pytest.raises(BuildError, match=message):
        run_trial(function, {"algorithms": [MixUp(0.3)]}, trial())


def test_refuses_a_function_that_ignores_the_optimizer_of_a_recipe():
    def ignores(algorithms, seed, optimizers):
        return build(algorithms, seed)

    given = {"algorithms": [], "optimizers": partial(torch.optim.SGD, lr=0.2)}
    with pytest.raises(BuildError, match="ignores its argument optimizers"):
        run_trial(ignores, given, trial())


def test_accepts_equal_copies_and_functions_as_algorithms():
    def copies(algorithms, seed):
        own = [MixUp(0.3) if isinstance(one, MixUp) else one for one in algorithms]
        return build([*own, EMA(half_life="3ba")], seed)

    function = FunctionAlgorithm(lambda event, state: state)
    assert run_trial(copies, {"algorithms": [MixUp(0.3), function]}, trial()).outcome == "finished"


# --- files ---


def test_writes_no_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def writes(algorithms, seed):
        return build(
            algorithms,
            seed,
            save_folder="run",
            save_interval="1ba",
            autoresume=True,
            callbacks=CheckpointSaver("others", save_interval="1ba"),
            loggers=JSONLinesLogger("lines.jsonl"),
            progress_bar=True,
        )

    assert run_trial(writes, PLAIN, trial()).outcome == "finished"
    assert list(tmp_path.iterdir()) == []


# --- seconds ---


@pytest.fixture
def fake_clock(monkeypatch):
    seconds = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: seconds[0])
    return seconds


def test_the_seconds_of_training_exclude_the_other_parts(fake_clock):
    steps = [0]

    def loss_fn(outputs, targets):
        if torch.is_grad_enabled():
            steps[0] += 1
            fake_clock[0] += 5 if steps[0] <= 3 else 1
        else:
            fake_clock[0] += 100
        return cross_entropy(outputs, targets)

    def timed(algorithms, seed):
        fake_clock[0] += 1000
        data = DataLoader(examples(16), batch_size=16)
        return build(algorithms, seed, loss_fn=loss_fn, eval_dataloader=data, eval_interval="2ba")

    result = run_trial(timed, PLAIN, trial(duration="20ba"))

    assert result.seconds.setup == 1000
    assert result.seconds.warmup == pytest.approx(12)  # three steps of 5 s in the place of 1 s
    assert result.seconds.training == pytest.approx(20)
    assert result.seconds.evaluation == 10 * 100


# --- loops of the user's own ---


def run_loop(loop, duration="10ba", **options):
    return trials.run_trial(loop_of(loop, {"factor": 1}, **options), trial(duration=duration))


def test_a_loop_is_recorded_at_each_yield_with_a_result():
    result = run_loop(descend)
    assert (result.outcome, result.batches) == ("finished", 10)
    assert [one.batch for one in result.curve] == [5, 10]
    assert set(result.curve[-1].metrics) == {"test/loss", "validation/loss"}
    assert run_loop(descend) != run_loop(lambda **given: descend(**{**given, "lr": 0.2}))
    same = [[one.metrics for one in run_loop(descend).curve] for _ in range(2)]
    assert same[0] == same[1]  # the generators are seeded


def test_the_time_between_yields_at_one_step_is_that_of_evaluation(fake_clock):
    def loop(arm, seed, duration):
        for step in range(1, duration.value + 1):
            fake_clock[0] += 2
            yield step, None
            fake_clock[0] += 50
            yield step, 0.5

    result = run_loop(loop, "20ba")
    assert (result.seconds.training, result.seconds.evaluation) == (40, 1000)


def test_a_loop_whose_result_is_not_finite_diverges():
    def loop(arm, seed, duration):
        yield 1, 0.5
        yield 2, torch.tensor(math.nan)
        raise AssertionError("not reached")

    result = run_loop(loop)
    assert (result.outcome, result.error) == ("diverged", "test/loss is nan after batch 2")


def test_an_exception_of_a_loop_fails_the_trial():
    def loop(arm, seed, duration):
        yield 1, 0.5
        raise OSError("the disk is gone")

    assert run_loop(loop).error == "OSError: the disk is gone"


@pytest.mark.parametrize(
    ("yielded", "message"),
    [
        ([3], "run yielded 3; it must yield"),
        ([(0, 1.0)], "an integer, at least 1"),
        ([(4, 1.0), (3, 1.0)], "an integer, at least 4"),
        ([(1, "good")], "could not convert"),
        ([(1, {"loss": 1.0})], "metric='test/loss' must be a result"),
        ([], "its evaluations log nothing"),
        (None, "must be a generator"),
    ],
)
def test_refuses_a_loop_that_does_not_yield_results(yielded, message):
    with pytest.raises(BuildError, match=message):
        run_loop(lambda arm, seed, duration: None if yielded is None else iter(yielded))


def test_reports_are_yielded_while_the_function_waits():
    log = []

    def train(report):
        for step in range(3):
            log.append(step)
            report(step)

    generator = yield_reports(train)
    assert log == []
    assert [next(generator), log] == [0, [0]]
    assert [next(generator), log] == [1, [0, 1]]
    generator.close()
    assert log == [0, 1]


def test_what_a_reporting_function_raises_is_raised_by_the_generator():
    def train(report):
        report(1)
        raise OSError("the disk is gone")

    generator = yield_reports(train)
    assert next(generator) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(generator)
