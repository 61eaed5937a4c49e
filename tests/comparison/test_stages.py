"""The stages of a comparison, with made-up results and a clock that is set by hand."""

import math
import re
import time
import types

import attrs
import pytest

from composable.algorithms import LabelSmoothing
from composable.comparison import stages
from composable.comparison.budget import BudgetError
from composable.comparison.cost import TimedBlock
from composable.comparison.records import Evaluation, Seconds, Study, Trial, TrialResult
from composable.comparison.stages import train_design, whole_seeds
from composable.comparison.study_file import Cache, DamagedCacheWarning
from composable.comparison.trial import Compared
from composable.core.time import Time
from tests.comparison.small import BATCHES, build, design

RATES = {"lr": [0.01, 0.05, 0.1, 0.5]}
LATER = 1e9


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


class Machine:
    """Runs trials of one second for each batch; the best rate is 0.1."""

    count, slowdown, start_seconds = 1, 1.0, 0.0

    def __init__(self, clock, cost=None, late=0.0):
        self.clock, self.cost, self.late = clock, cost or {}, late
        self.trials, self.planned, self.alone = [], [], {}

    def train(self, what, trials, later=(), until=math.inf, *, stored=True, alone=False):
        self.alone[what] = alone
        self.planned.append(len(self.trials) + len(trials) + len(later))
        results = []
        for trial in trials:
            result = self.result(trial)
            took = result.seconds.training + self.late * (trial.purpose == "reporting")
            if self.clock[0] + took > until:
                results.append(None)
                continue
            self.clock[0] += took
            self.trials.append(trial)
            results.append(result)
        return results

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


def test_without_tuning_only_the_reported_runs_are_trained(clock):
    machine = Machine(clock)
    trained = train_design(design(seeds=3), machine)
    assert machine.of("tuning") == []
    assert len(machine.of("reporting")) == 3 * 3 * 3
    assert trained.protocol.seeds == (0, 1, 2)
    assert len(trained.protocol.notes) == 1
    first = {(one.arm, one.seed) for one in machine.trials[:9]}  # seed by seed
    assert first == {("baseline", 0), ("other", 0), ("baseline (repeated)", 2000)}


def test_every_arm_is_tuned_and_reported_on_its_own_seeds(clock):
    made, machine = design(tune=RATES, seeds=3), Machine(clock)
    trained = train_design(made, machine)
    assert set(map(str, trained.protocol.chosen.values())) == {"{'lr': 0.1}"}
    full = [one for one in machine.of("tuning") if one.duration == "4ep"]
    assert [sum(one.arm == arm for one in full) for arm in made.protocol.arms] == [8, 8, 8]
    assert len(machine.of("tuning")) == 24 + 3  # with the short trials, which are not reported
    reported = machine.of("reporting")
    assert not {one.seed for one in machine.of("tuning")} & {one.seed for one in reported}
    assert all(one.settings == {"lr": 0.1} for one in reported)
    assert len([one for one in trained.results if one.trial.purpose == "tuning"]) == 24
    assert set(machine.planned) == {3 + 24 + 27}  # the progress knows all from the beginning


@pytest.mark.parametrize(
    ("durations", "rate"), [(None, 2.0), ({"baseline": ["2ep", "4ep"], "other": ["1ep"]}, 4.0)]
)
def test_all_arms_are_tuned_for_the_same_seconds(clock, durations, rate):
    made, machine = (
        design(tune=RATES, seeds=1, durations=durations),
        Machine(clock, {"other": rate}),
    )
    trained = train_design(made, machine)
    tuning = [one for one in trained.results if one.trial.purpose == "tuning"]
    seconds = {
        arm: sum(one.seconds.training for one in tuning if one.trial.arm == arm)
        for arm in made.protocol.arms
    }
    assert seconds == dict.fromkeys(made.protocol.arms, 320.0)


# --- a budget ---


def test_a_budget_that_suffices_changes_nothing(clock):
    made, free, limited = design(tune=RATES, seeds=3), Machine(clock), Machine(clock)
    train_design(made, free)
    assert train_design(made, limited, clock[0] + 10_000).protocol.notes == made.protocol.notes
    assert limited.trials[1:] == free.trials  # after a warm-up


@pytest.mark.parametrize("budget", [900, 1200, 1500, 2000])
def test_a_smaller_budget_is_kept_and_what_is_left_out_is_said(clock, budget):
    machine = Machine(clock)
    trained = train_design(design(tune=RATES, seeds=5), machine, budget)
    assert clock[0] <= budget
    assert len(trained.protocol.seeds) >= 3
    assert all(len(kept) >= 2 for kept in trained.protocol.schedules.values())
    (note,) = trained.protocol.notes
    assert re.match(r"The budget allows \d of 4 configurations .* seeds and \d of 3 sch", note)


def test_a_budget_without_a_verdict_is_refused_before_anything_else_is_trained(clock):
    machine = Machine(clock)
    with pytest.raises(BudgetError, match="the smallest comparison that gives a verdict takes"):
        train_design(design(tune=RATES, seeds=5), machine, 300)
    assert len(machine.trials) == 4  # the short ones


def test_a_budget_that_ends_in_the_short_trials_is_refused(clock):
    with pytest.raises(BudgetError, match="before a short trial of each arm"):
        train_design(design(seeds=5), Machine(clock), 25)


def test_with_a_budget_each_worker_is_warm_before_the_costs_are_measured(clock):
    machine = Machine(clock)
    machine.count = 2
    train_design(design(seeds=3), machine, 10_000)
    arms = [one.arm for one in machine.trials[:5]]
    assert arms == ["baseline", "baseline", "baseline", "other", "baseline (repeated)"]
    assert len({one.duration for one in machine.trials[:5]}) == 1
    assert {what for what, alone in machine.alone.items() if alone} == {"short trials"}


def test_tuning_leaves_the_time_of_the_reported_runs(clock):
    """A machine that becomes slower cuts tuning short, and then schedules."""
    machine = Machine(clock)
    result = machine.result

    def slower(trial):
        if trial.purpose == "tuning" and trial.duration != "20ba":
            clock[0] += 60
        return result(trial)

    machine.result = slower
    trained = train_design(design(tune=RATES, seeds=5), machine, 2500)
    assert clock[0] <= 2500
    assert len(trained.protocol.seeds) >= 3
    assert any("Tuning was cut short" in note for note in trained.protocol.notes)


def test_a_budget_that_ends_early_reports_whole_seeds(clock):
    machine = Machine(clock, late=60)
    trained = train_design(design(seeds=5), machine, 1600)
    assert clock[0] <= 1600
    assert len(trained.protocol.seeds) == 1
    assert "reported runs not run: 1 of 5 seeds are complete" in trained.protocol.notes[-1]
    assert len([one for one in trained.results if one.trial.purpose == "reporting"]) == 9


@pytest.mark.parametrize(
    ("results", "complete", "notes"),
    [
        ([1, 2, 3, 4], 2, 0),
        ([1, 2, 3, None], 1, 1),
        ([1, None, 3, 4], 0, 1),
        ([None] * 4, 0, 1),
    ],
)
def test_only_whole_seeds_are_kept(results, complete, notes):
    kept, count, said = whole_seeds(results, 2)
    assert (len(kept), count, len(said)) == (2 * complete, complete, notes)


# --- the costs of steps ---


@pytest.fixture
def pool(tmp_path, monkeypatch):
    """Record the runs that are measured in the place of measuring."""
    measured = []

    def measure(pool, runs, until, errors):
        measured.append([(one.arm, one.duration) for one, _ in runs.values()])
        return {
            arm: stages.step_cost(one, [TimedBlock(0, count, float(at + 1))], count)
            for at, (arm, (one, count)) in enumerate(runs.items())
        }

    monkeypatch.setattr(stages, "_measure", measure)
    monkeypatch.setattr(time, "monotonic", lambda: float(len(measured) ** 2))
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


@pytest.mark.parametrize(
    ("until", "begun", "processes"),
    [(0.5, 1, 1), (1.5, 1, 1), (2.5, 2, 1), (4.5, 2, 2), (99, 4, 4)],
)
def test_within_a_budget_arms_are_measured_as_often_as_there_is_time(pool, until, begun, processes):
    made = design()
    costs, notes = measure_costs(made, pool, trained(made), until)
    assert {one.processes for one in costs} == {processes}
    assert len(pool.measured) == begun
    said = [f"The budget left time for {processes} of 4 processes an arm."]
    assert notes == said * (processes < 4)
    assert measure_costs(made, pool, trained(made))[0][0].processes == 4


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

    def failing(pool, runs, until, errors):
        costs = measure(pool, runs, until, errors)
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


def test_an_arm_that_fails_in_measurements_that_do_not_count_keeps_its_cost(pool, monkeypatch):
    fail_measurement(monkeypatch, 2, "its run is too short, or the budget ended")
    made = design()
    costs, notes = measure_costs(made, pool, trained(made), 2.5)
    assert [one.arm for one in costs] == ["baseline", "other", "baseline (repeated)"]
    assert notes == ["The budget left time for 1 of 4 processes an arm."]
