"""The choice of settings, with made-up results."""

import math
from itertools import product

import pytest

from composable.comparison.rates import Rates
from composable.comparison.records import Evaluation, Seconds, Trial, TrialResult
from composable.comparison.stages import choose_settings, tuning_trials
from tests.comparison.small import design

BEST = {"plain": 0.1, "mixed": 0.01}
RATES = (0.001, 0.01, 0.1, 1.0)
TRIED = {arm: [{"lr": rate} for rate in RATES] for arm in BEST}
TRIALS = [
    Trial(arm, one, "4ep", seed, "tuning")
    for arm, tried in TRIED.items()
    for one, seed in product(tried, (8, 9))
]


def result(trial, value, outcome="finished", error=None):
    curve = (Evaluation(1, {"validation/loss": value}),)
    return TrialResult(trial, outcome, 1, Seconds(0, 0, 1, 0), curve, error)


def score(one):
    value = -one.curve[-1].metrics["validation/loss"]
    return value if one.outcome == "finished" and math.isfinite(value) else -math.inf


def test_the_best_settings_of_each_arm_are_chosen():
    losses = [abs(math.log10(one.settings["lr"] / BEST[one.arm])) for one in TRIALS]
    results = [result(one, loss) for one, loss in zip(TRIALS, losses, strict=True)]
    assert choose_settings(TRIED, results, score) == (
        {arm: {"lr": best} for arm, best in BEST.items()},
        [],
    )


def test_every_arm_gets_the_same_trials_and_only_tuning_seeds():
    made = design(tune={"lr": RATES})
    trials = tuning_trials(made, Rates({}, 10))
    of = {arm: [one for one in trials if one.arm == arm] for arm in made.protocol.arms}
    assert {len(own) for own in of.values()} == {8}
    assert {one.seed for one in of["other"]} == set(made.protocol.tuning_seeds)
    assert {one.purpose for one in trials} == {"tuning"}


def test_of_equal_settings_the_first_is_chosen():
    chosen, _ = choose_settings(TRIED, [result(one, 1.0) for one in TRIALS], score)
    assert chosen["plain"] == {"lr": 0.001}


@pytest.mark.parametrize("outcome", ["failed", "diverged", "nan"])
def test_settings_without_a_result_on_one_seed_are_the_worst(outcome):
    lost = (0.0, outcome) if outcome != "nan" else (math.nan, "finished")
    results = [
        result(one, *(lost if one.settings["lr"] == 0.001 and one.seed == 9 else (5.0,)))
        for one in TRIALS
    ]
    assert choose_settings(TRIED, results, score)[0]["plain"] == {"lr": 0.01}


def test_an_arm_whose_trials_all_fail_is_named():
    failed = (0.0, "failed", "ValueError: no")
    results = [result(one, *(failed if one.arm == "mixed" else (1.0,))) for one in TRIALS]
    _, notes = choose_settings(TRIED, results, score)
    assert notes == ["mixed: no tuning trial has a result: ValueError: no"]
