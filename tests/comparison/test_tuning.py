"""Tuning, and successive halving, with made-up results."""

import math

import pytest

from composable.comparison.budget import Rung, halving
from composable.comparison.records import Evaluation, Seconds, TrialResult
from composable.comparison.stages import rung_trials, tune

SEEDS = {"plain": (8, 9), "mixed": (8, 9)}
RATES = (0.001, 0.01, 0.1, 1.0)
TRIED = {arm: [{"lr": rate} for rate in RATES] for arm in SEEDS}


def result(trial, value, outcome="finished", error=None):
    curve = (Evaluation(1, {"validation/loss": value}),)
    return TrialResult(trial, outcome, 1, Seconds(0, 0, 1, 0), curve, error)


def score(one):
    if one is None or one.outcome != "finished":
        return -math.inf
    value = -one.curve[-1].metrics["validation/loss"]
    return value if math.isfinite(value) else -math.inf


class Landscape:
    """Runs trials whose loss is the distance of the rate to the best one of the arm."""

    def __init__(self, limit=math.inf):
        self.best = {"plain": 0.1, "mixed": 0.01}
        self.rounds = []
        self.limit = limit

    def __call__(self, trials):
        self.rounds.append(trials)
        found = []
        for trial in trials:
            self.limit -= 1
            distance = abs(math.log10(trial.settings["lr"] / self.best[trial.arm]))
            found.append(result(trial, distance) if self.limit >= 0 else None)
        return found


def test_the_best_settings_of_each_arm_are_chosen():
    chosen, notes = tune(TRIED, [Rung("4ep", 4)], SEEDS, Landscape(), score)
    assert chosen == {"plain": {"lr": 0.1}, "mixed": {"lr": 0.01}}
    assert notes == []


def test_each_round_keeps_the_better_half_for_longer():
    run = Landscape()
    chosen, _ = tune(TRIED, halving(4, ["1ep", "2ep", "4ep"]), SEEDS, run, score)
    assert chosen == {"plain": {"lr": 0.1}, "mixed": {"lr": 0.01}}
    assert [(one[0].duration, len(one)) for one in run.rounds] == [("2ep", 16), ("4ep", 8)]
    kept = {trial.settings["lr"] for trial in run.rounds[1] if trial.arm == "plain"}
    assert kept == {0.1, 0.01}


def test_every_arm_gets_the_same_trials_and_only_tuning_seeds():
    trials = rung_trials(TRIED, "4ep", SEEDS, lambda arm, duration: duration)
    of = {arm: [one for one in trials if one.arm == arm] for arm in SEEDS}
    assert len(of["plain"]) == len(of["mixed"]) == 8
    assert {one.seed for one in trials} == {8, 9}
    assert {one.purpose for one in trials} == {"tuning"}
    first = [one.arm for one in trials[:4]]
    assert sorted(first) == ["mixed", "mixed", "plain", "plain"]


def test_dearer_arms_are_tuned_on_shorter_runs():
    run = Landscape()
    scale = {"plain": "4ep", "mixed": "2ep"}
    tune(TRIED, [Rung("4ep", 4)], SEEDS, run, score, lambda arm, duration: scale[arm])
    assert {(one.arm, one.duration) for one in run.rounds[0]} == set(scale.items())


def test_of_equal_settings_the_first_is_chosen():
    chosen, _ = tune(TRIED, [Rung("4ep", 4)], SEEDS, lambda ts: [result(t, 1.0) for t in ts], score)
    assert chosen["plain"] == {"lr": 0.001}


@pytest.mark.parametrize("outcome", ["failed", "diverged", "nan"])
def test_settings_without_a_result_on_one_seed_are_the_worst(outcome):
    def run(trials):
        return [
            result(
                one,
                math.nan if outcome == "nan" else 0.0,
                "finished" if outcome == "nan" else outcome,
            )
            if one.settings["lr"] == 0.001 and one.seed == 9
            else result(one, 5.0)
            for one in trials
        ]

    assert tune(TRIED, [Rung("4ep", 4)], SEEDS, run, score)[0]["plain"] == {"lr": 0.01}


def test_an_arm_whose_trials_all_fail_is_named():
    def run(trials):
        return [
            result(one, 0.0, "failed", "ValueError: no") if one.arm == "mixed" else result(one, 1.0)
            for one in trials
        ]

    _, notes = tune(TRIED, [Rung("4ep", 4)], SEEDS, run, score)
    assert notes == ["mixed: no tuning trial of 4ep has a result: ValueError: no"]


def test_a_round_that_is_cut_short_chooses_by_what_is_finished():
    run = Landscape(limit=16 + 3)
    rungs = [Rung("2ep", 4), Rung("4ep", 2), Rung("8ep", 2)]
    chosen, notes = tune(TRIED, rungs, SEEDS, run, score)
    assert len(run.rounds) == 2
    assert chosen == {"plain": {"lr": 0.1}, "mixed": {"lr": 0.01}}
    assert notes == ["Tuning was cut short: 5 of 8 trials of a round of 4ep were not run."]


def test_one_configuration_is_not_trained():
    def run(trials):
        raise AssertionError("nothing to choose")

    chosen, _ = tune({"plain": [{}]}, halving(1, ["1ep"]), {"plain": (8,)}, run, score)
    assert chosen == {"plain": {}}
