"""The stages of a comparison, with made-up results."""

import math
import types
from itertools import product

import attrs
import pytest

from composable.algorithms import LabelSmoothing
from composable.comparison import stages
from composable.comparison.cost import TimedBlock
from composable.comparison.records import Evaluation, Seconds, Study, Trial, TrialResult
from composable.comparison.stages import choose_settings, train_design
from composable.comparison.study_file import Cache, DamagedCacheWarning
from composable.comparison.trial import Compared
from composable.core.time import Time
from tests.comparison.small import BATCHES, build, design

RATES = {"lr": [0.01, 0.05, 0.1, 0.5]}


class Machine:
    """Runs trials of one second for each batch; the best rate is 0.1."""

    def __init__(self, cost=None):
        self.cost = cost or {}
        self.trials, self.planned, self.alone = [], [], {}

    def train(self, what, trials, later=(), *, alone=False):
        self.alone[what] = alone
        self.planned.append(len(self.trials) + len(trials) + len(later))
        self.trials += trials
        return [self.result(trial) for trial in trials]

    def result(self, trial):
        length = Time.parse(trial.duration)
        batches = length.value * (BATCHES if length.unit.value == "ep" else 1)
        seconds = batches * self.cost.get(trial.arm, 1.0)
        value = 1.0 - abs(trial.settings.get("lr", 0.1) - 0.1)
        metrics = {"test/accuracy": 0.5, "validation/accuracy": value}
        curve = (Evaluation(batches, metrics),)
        return TrialResult(trial, "finished", batches, Seconds(0, 0, seconds, 0), curve)

    def of(self, purpose):
        return [one for one in self.trials if one.purpose == purpose]


def test_without_tuning_only_the_reported_runs_are_trained():
    machine = Machine()
    trained = train_design(design(seeds=3), machine)
    assert machine.of("tuning") == []
    assert len(machine.of("reporting")) == 3 * 3 * 3
    assert trained.protocol.seeds == (0, 1, 2)
    assert len(trained.protocol.notes) == 1
    first = {(one.arm, one.seed) for one in machine.trials[:9]}  # seed by seed
    assert first == {("baseline", 0), ("other", 0), ("baseline (repeated)", 2000)}


def test_every_arm_is_tuned_and_reported_on_its_own_seeds():
    made, machine = design(tune=RATES, seeds=3), Machine()
    trained = train_design(made, machine)
    assert set(map(str, trained.protocol.chosen.values())) == {"{'lr': 0.1}"}
    full = [one for one in machine.of("tuning") if one.duration == "4ep"]
    assert [sum(one.arm == arm for one in full) for arm in made.protocol.arms] == [8, 8, 8]
    assert len(machine.of("tuning")) == 24 + 3  # with the short trials, which are not reported
    reported = machine.of("reporting")
    assert {one.seed for one in full if one.arm == "other"} == set(made.protocol.tuning_seeds)
    assert not {one.seed for one in machine.of("tuning")} & {one.seed for one in reported}
    assert all(one.settings == {"lr": 0.1} for one in reported)
    assert len([one for one in trained.results if one.trial.purpose == "tuning"]) == 24
    assert machine.alone == {"short trials": True, "tuning": False, "reported runs": False}
    assert set(machine.planned) == {3 + 24 + 27}  # the progress knows all from the beginning


@pytest.mark.parametrize(
    ("durations", "rate"), [(None, 2.0), ({"baseline": ["2ep", "4ep"], "other": ["1ep"]}, 4.0)]
)
def test_all_arms_are_tuned_for_the_same_seconds(durations, rate):
    made, machine = (
        design(tune=RATES, seeds=1, durations=durations),
        Machine({"other": rate}),
    )
    trained = train_design(made, machine)
    tuning = [one for one in trained.results if one.trial.purpose == "tuning"]
    seconds = {
        arm: sum(one.seconds.training for one in tuning if one.trial.arm == arm)
        for arm in made.protocol.arms
    }
    assert seconds == dict.fromkeys(made.protocol.arms, 320.0)


# --- the choice of settings ---

BEST = {"plain": 0.1, "mixed": 0.01}
TRIED_RATES = (0.001, 0.01, 0.1, 1.0)
TRIED = {arm: [{"lr": rate} for rate in TRIED_RATES] for arm in BEST}
TRIALS = [
    Trial(arm, one, "4ep", seed, "tuning")
    for arm, tried in TRIED.items()
    for one, seed in product(tried, (8, 9))
]


def tuned(trial, value, outcome="finished", error=None):
    curve = (Evaluation(1, {"validation/loss": value}),)
    return TrialResult(trial, outcome, 1, Seconds(0, 0, 1, 0), curve, error)


def score(one):
    value = -one.curve[-1].metrics["validation/loss"]
    return value if one.outcome == "finished" and math.isfinite(value) else -math.inf


def test_the_best_settings_of_each_arm_are_chosen():
    losses = [abs(math.log10(one.settings["lr"] / BEST[one.arm])) for one in TRIALS]
    results = [tuned(one, loss) for one, loss in zip(TRIALS, losses, strict=True)]
    assert choose_settings(TRIED, results, score) == (
        {arm: {"lr": best} for arm, best in BEST.items()},
        [],
    )


def test_of_equal_settings_the_first_is_chosen():
    chosen, _ = choose_settings(TRIED, [tuned(one, 1.0) for one in TRIALS], score)
    assert chosen["plain"] == {"lr": 0.001}


@pytest.mark.parametrize("outcome", ["failed", "diverged", "nan"])
def test_settings_without_a_result_on_one_seed_are_the_worst(outcome):
    lost = (0.0, outcome) if outcome != "nan" else (math.nan, "finished")
    results = [
        tuned(one, *(lost if one.settings["lr"] == 0.001 and one.seed == 9 else (5.0,)))
        for one in TRIALS
    ]
    assert choose_settings(TRIED, results, score)[0]["plain"] == {"lr": 0.01}


def test_an_arm_whose_trials_all_fail_is_named():
    failed = (0.0, "failed", "ValueError: no")
    results = [tuned(one, *(failed if one.arm == "mixed" else (1.0,))) for one in TRIALS]
    _, notes = choose_settings(TRIED, results, score)
    assert notes == ["mixed: no tuning trial has a result: ValueError: no"]


# --- the costs of steps ---


@pytest.fixture
def pool(tmp_path, monkeypatch):
    """Record the runs that are measured in the place of measuring."""
    measured = []

    def measure(pool, runs, errors):
        measured.append([(one.arm, one.duration) for one, _ in runs.values()])
        return {
            arm: stages.step_cost(one, [TimedBlock(0, count, float(at + 1))], count)
            for at, (arm, (one, count)) in enumerate(runs.items())
        }

    monkeypatch.setattr(stages, "_measure", measure)
    cache = Cache(tmp_path / "trials", Compared(function=build))
    return types.SimpleNamespace(cache=cache, stop=lambda: None, measured=measured)


def measure_costs(made, pool, *arguments):
    pool.cache.subject = made.subject
    return stages.measure_costs(pool, *arguments)


def trained(made, *, batches=40, failing=()):
    results = []
    for arm in made.protocol.arms:
        for at, duration in enumerate(made.protocol.durations):
            outcome = "failed" if (arm, duration) in failing else "finished"
            trial = Trial(arm, {}, duration, 0, "reporting")
            results.append(TrialResult(trial, outcome, batches * 2**at, Seconds(0, 0, 1, 0), ()))
    protocol = attrs.evolve(
        made.protocol, chosen={one: {} for one in made.protocol.arms}, seeds=(0,)
    )
    return Study(protocol, tuple(results), ())


def test_costs_are_measured_once_and_read_again(pool):
    made = design()
    first, notes = measure_costs(made, pool, trained(made))
    assert [one.arm for one in first] == ["baseline", "other", "baseline (repeated)"]
    assert [one.processes for one in first] == [4, 4, 4]
    assert notes == []
    assert measure_costs(made, pool, trained(made)) == (first, [])
    assert len(pool.measured) == 4


def test_stored_costs_have_the_present_names_of_the_arms(pool):
    smoothing, plain = [LabelSmoothing(0.1)], [LabelSmoothing(0.2)]
    before = design(arms={"a": smoothing, "b": plain})
    costs, _ = measure_costs(before, pool, trained(before))
    after = design(arms={"b": smoothing, "a": plain})
    renamed, _ = measure_costs(after, pool, trained(after))
    assert len(pool.measured) == 4
    assert [one.arm for one in renamed] == ["baseline", "b", "a", "baseline (repeated)"]
    assert [one.seconds for one in renamed] == [one.seconds for one in costs]


def test_costs_of_another_machine_are_measured_again(pool):
    made = design()
    study = trained(made)
    measure_costs(made, pool, study)
    protocol = attrs.evolve(study.protocol, versions={"device": "another"})
    measure_costs(made, pool, attrs.evolve(study, protocol=protocol))
    assert len(pool.measured) == 8


@pytest.mark.parametrize("text", ["", "{", "3"])
def test_damaged_costs_are_measured_again_with_a_warning(pool, text):
    made = design()
    first, _ = measure_costs(made, pool, trained(made))
    (path,) = (pool.cache.folder.parent / "costs").iterdir()
    path.write_text(text)
    with pytest.warns(DamagedCacheWarning, match="is damaged, and the costs of steps"):
        assert measure_costs(made, pool, trained(made)) == (first, [])


def test_an_arm_without_a_finished_run_has_no_cost(pool):
    made = design(arms={"good": [LabelSmoothing(0.1)], "bad": [LabelSmoothing(0.9)]})
    failing = {("bad", duration) for duration in made.protocol.durations}
    costs, _ = measure_costs(made, pool, trained(made, failing=failing))
    assert [one.arm for one in costs] == ["baseline", "good", "baseline (repeated)"]


def test_without_a_finished_run_of_the_baseline_nothing_is_measured(pool):
    made = design()
    failing = {("baseline", duration) for duration in made.protocol.durations}
    costs, notes = measure_costs(made, pool, trained(made, failing=failing))
    assert (costs, pool.measured) == ((), [])
    assert "no run of the baseline finished" in notes[0]


@pytest.mark.parametrize(
    ("batches", "duration"), [(400, "1ep"), (20, "2ep"), (10, "4ep"), (3, "12ep")]
)
def test_the_shortest_schedule_with_enough_steps_is_measured_or_a_multiple(pool, batches, duration):
    made = design()
    measure_costs(made, pool, trained(made, batches=batches))
    assert pool.measured == 4 * [[(arm, duration) for arm in made.protocol.arms]]


def test_costs_of_later_groups_are_those_beside_the_baseline_of_the_first(pool, monkeypatch):
    monkeypatch.setattr(stages, "_AT_ONCE", 2)
    made = design(arms={str(at): [LabelSmoothing(at / 10)] for at in range(3)})
    costs, _ = measure_costs(made, pool, trained(made))
    assert [[arm for arm, _ in group] for group in pool.measured] == 4 * [
        ["baseline", "0"],
        ["baseline", "1"],
        ["baseline", "2"],
        ["baseline", "baseline (repeated)"],
    ]
    assert [one.seconds for one in costs] == [((1.0,) * 4,), *[((2.0,) * 4,)] * 4]
    assert attrs.astuple(costs[0])[0] == "baseline"


def fail_measurement(monkeypatch, number, error):
    """Let the cost of "other" fail in the measurement of this number."""
    measure = stages._measure

    def failing(pool, runs, errors):
        costs = measure(pool, runs, errors)
        if len(pool.measured) == number:
            errors["other"] = error
            del costs["other"]
        return costs

    monkeypatch.setattr(stages, "_measure", failing)


def test_an_arm_that_fails_in_one_process_has_no_cost(pool, monkeypatch):
    fail_measurement(monkeypatch, 3, "no memory")
    made = design()
    costs, notes = measure_costs(made, pool, trained(made))
    assert [one.arm for one in costs] == ["baseline", "baseline (repeated)"]
    assert notes == ["the cost of a step of arm 'other' cannot be measured: no memory"]
