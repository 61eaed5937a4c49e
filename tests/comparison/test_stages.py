"""The stages of a comparison, with made-up results and a clock that is set by hand."""

import pytest

from composable.comparison.plan.progress import Progress
from composable.comparison.plan.running import Runner
from composable.comparison.plan.stages import train, whole_seeds
from composable.comparison.records import Evaluation, Seconds, TrialResult
from composable.core.time import Time
from tests.comparison.small import BATCHES, design

RATES = {"lr": [0.01, 0.05, 0.1, 0.5]}


class Machine:
    """Runs trials of one second for each batch; the best rate is 0.1."""

    def __init__(self, made, cost=None, known=()):
        self.now, self.requests, self.cost = 0.0, [], cost or {}
        self.known = list(known)
        self.progress = Progress(BATCHES, show=False, now=lambda: self.now)
        self.runner = Runner(made, self.run, self.progress, now=lambda: self.now)

    def run(self, requests):
        waiting = []
        for request in requests:
            if request.trial in self.known:
                yield self.result(request)
            else:
                waiting.append(request)
        for request in waiting:
            self.requests.append(request)
            result = self.result(request)
            self.now += result.seconds.training
            yield result

    def result(self, request):
        trial = request.trial
        length = Time.parse(trial.duration)
        batches = length.value * (BATCHES if length.unit.value == "ep" else 1)
        seconds = batches * self.cost.get(trial.arm, 1.0)
        value = 1.0 - abs(trial.settings.get("lr", 0.1) - 0.1)
        metrics = {"test/accuracy": 0.5, "validation/accuracy": value}
        curve = (Evaluation(batches, 1.0, seconds, metrics),)
        return TrialResult(trial, "finished", batches, Seconds(0, 0, seconds, 0), curve)

    def of(self, purpose):
        return [one.trial for one in self.requests if one.trial.purpose == purpose]


def compared(made, **options):
    machine = Machine(made, **options)
    return machine, train(made, machine.runner.train, 1, machine.runner.spent)


def test_without_tuning_only_the_reported_runs_are_trained():
    machine, trained = compared(design(seeds=3))
    assert machine.of("tuning") == []
    assert len(machine.of("reporting")) == 3 * 3 * 3
    assert trained.seeds == (0, 1, 2)
    assert trained.notes == ()


def test_every_arm_is_tuned_and_reported_on_its_own_seeds():
    made = design(tune=RATES, seeds=3)
    machine, trained = compared(made)
    assert set(map(str, trained.settings.values())) == {"{'lr': 0.1}"}
    tuning = machine.of("tuning")
    full = [one for one in tuning if one.duration == "4ep"]
    counts = [sum(one.arm == arm for one in full) for arm in made.arms]
    assert counts == [8, 8, 8]
    reported = machine.of("reporting")
    assert not {one.seed for one in tuning} & {one.seed for one in reported}
    assert all(one.settings == {"lr": 0.1} for one in reported)
    assert len([one for one in trained.results if one.trial.purpose == "tuning"]) == 24


def test_short_trials_are_not_reported_as_tuning():
    machine, trained = compared(design(tune=RATES, seeds=3))
    assert len(machine.of("tuning")) == 24 + 3
    assert {one.trial.duration for one in trained.results} == {"1ep", "2ep", "4ep"}


def test_dearer_arms_are_tuned_for_the_same_seconds():
    _, trained = compared(design(tune=RATES, seeds=1), cost={"other": 2.0})
    tuning = [one for one in trained.results if one.trial.purpose == "tuning"]
    seconds = {
        arm: sum(one.seconds.training for one in tuning if one.trial.arm == arm)
        for arm in ("baseline", "other", "baseline (repeated)")
    }
    assert seconds == dict.fromkeys(seconds, 320.0)


def test_arms_of_other_schedules_are_tuned_for_the_same_seconds():
    schedules = {"baseline": ["2ep", "4ep"], "other": ["1ep"]}
    made = design(tune=RATES, seeds=2, durations=schedules)
    machine, trained = compared(made, cost={"other": 4.0})
    tuning = [one for one in trained.results if one.trial.purpose == "tuning"]
    seconds = {
        arm: sum(one.seconds.training for one in tuning if one.trial.arm == arm)
        for arm in made.arms
    }
    assert seconds == dict.fromkeys(made.arms, 320.0)
    reported = [(one.arm, one.duration) for one in machine.of("reporting") if one.seed == 0]
    assert reported == [("baseline", "2ep"), ("baseline", "4ep"), ("other", "1ep")]


def test_a_budget_keeps_whole_seeds_of_arms_of_other_schedules():
    made = design(seeds=5, budget=600, durations={"baseline": ["2ep", "4ep"], "other": "1ep"})
    machine = Machine(made)

    def slower_than_estimated(requests):
        for result in machine.run(requests):
            machine.now += 40 * (result.trial.purpose == "reporting")
            yield result

    machine.runner._run = slower_than_estimated
    trained = train(made, machine.runner.train, 1, machine.runner.spent)
    assert trained.seeds == (0,)
    kept = [one.trial for one in trained.results if one.trial.purpose == "reporting"]
    assert len(kept) == 2 + 1 + 2


def test_a_budget_that_suffices_changes_nothing():
    free, _ = compared(design(tune=RATES, seeds=3))
    budgeted, trained = compared(design(tune=RATES, seeds=3, budget=10_000))
    assert [one.trial for one in budgeted.requests] == [one.trial for one in free.requests]
    assert trained.notes == ()


def test_a_smaller_budget_is_kept_and_what_is_left_out_is_said():
    made = design(tune=RATES, seeds=5, budget=1500)
    machine, trained = compared(made)
    assert machine.now <= 1500
    assert len(trained.seeds) >= 3
    (note,) = trained.notes
    assert note.startswith("The budget of 25 min allows ")
    assert "of 4 configurations of each arm" in note
    rungs = {one.duration for one in machine.of("tuning")}
    assert len(rungs) >= 2


def test_a_budget_that_ends_early_reports_whole_seeds():
    made = design(seeds=5, budget=1000)
    machine = Machine(made)

    def slower_than_estimated(requests):
        for result in machine.run(requests):
            machine.now += 60 * (result.trial.purpose == "reporting")
            yield result

    machine.runner._run = slower_than_estimated
    trained = train(made, machine.runner.train, 1, machine.runner.spent)
    assert trained.seeds == (0,)
    assert "The budget ended with 15 of 27 reported runs not run" in trained.notes[-1]
    kept = [one for one in trained.results if one.trial.purpose == "reporting"]
    assert len(kept) == 9


def test_the_progress_knows_all_trials_from_the_beginning():
    made = design(tune=RATES, seeds=2)
    machine = Machine(made)
    totals = []
    finish = machine.progress.finish

    def watched(result, **options):
        finish(result, **options)
        totals.append(machine.progress.total)

    machine.progress.finish = watched
    train(made, machine.runner.train, 1, machine.runner.spent)
    assert set(totals) == {3 + 24 + 18}


def test_trials_that_are_known_do_not_count_for_the_speed():
    made = design(seeds=2)
    first, trained = compared(made)
    machine, again = compared(made, known=[one.trial for one in first.requests])
    assert machine.requests == []
    assert [one.trial for one in again.results] == [one.trial for one in trained.results]
    assert machine.progress.left is None


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
