"""Costs that short trials show, and tuning for equal seconds."""

import pytest

from composable.comparison.plan.estimates import Estimates, equal_seconds, short_trials
from composable.comparison.records import Evaluation, Seconds, Trial, TrialResult

TRIED = {"plain": ({"lr": 1}, {"lr": 2}), "mixed": ({"lr": 1}, {"lr": 2})}
SEEDS = {"plain": (8, 9), "mixed": (8, 9)}


@pytest.mark.parametrize(
    ("shortest", "epoch_length", "duration"),
    [
        ("1600ba", None, "200ba"),
        ("80ba", None, "20ba"),
        ("10ba", None, "10ba"),
        ("4ep", 100, "50ba"),
        ("4ep", None, "4ep"),
        ("30sec", 100, "30sec"),
    ],
)
def test_short_trials_are_an_eighth_of_the_shortest_schedule(shortest, epoch_length, duration):
    trials = short_trials(TRIED, {"plain": shortest, "mixed": "10sec"}, SEEDS, epoch_length)
    assert [one.arm for one in trials] == ["plain", "mixed"]
    assert [one.duration for one in trials] == [duration, "10sec"]
    assert {(one.seed, one.settings["lr"]) for one in trials} == {(8, 1)}


def ran(arm, duration, outcome="finished"):
    curve = (Evaluation(10, 1.0, 1.0, {}),)
    trial = Trial(arm, {}, duration, 8, "tuning")
    return TrialResult(trial, outcome, 10, Seconds(0.5, 0.25, 2.0, 0.1), curve)


def test_trials_cost_their_set_up_their_steps_and_their_evaluations():
    estimates = Estimates.of([ran("plain", "10ba")], epoch_length=5)
    assert estimates.seconds(ran("plain", "20ba").trial) == pytest.approx(0.75 + 4.0 + 0.4)


def test_arms_that_failed_have_no_estimate():
    estimates = Estimates.of([ran("plain", "10ba"), ran("mixed", "10ba", "failed")], None)
    assert estimates.seconds(ran("mixed", "20ba").trial) == 0.0
    assert estimates.relative_rate("mixed", "plain") == 1.0


def test_the_relative_rate_is_that_of_the_steps():
    estimates = Estimates.of([ran("plain", "10ba"), ran("mixed", "5ba")], None)
    assert estimates.relative_rate("mixed", "plain") == pytest.approx(2.0)


@pytest.mark.parametrize(("duration", "epoch_length"), [("40ba", None), ("4ep", 10)])
def test_a_diverged_trial_counts_the_batches_that_it_ran(duration, epoch_length):
    estimates = Estimates.of(
        [ran("plain", "10ba"), ran("mixed", duration, "diverged")], epoch_length
    )
    assert estimates.relative_rate("mixed", "plain") == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("duration", "rate", "epoch_length", "equal"),
    [
        ("100ba", 1.0, None, "100ba"),
        ("100ba", 1.19, None, "100ba"),
        ("100ba", 0.85, None, "100ba"),
        ("100ba", 2.0, None, "50ba"),
        ("100ba", 0.5, None, "200ba"),
        ("4ep", 2.0, 25, "50ba"),
        ("4ep", 2.0, None, "2ep"),
        ("1ba", 9.0, None, "1ba"),
        ("30sec", 2.0, None, "30sec"),
    ],
)
def test_an_arm_of_dearer_steps_is_tuned_on_fewer(duration, rate, epoch_length, equal):
    assert equal_seconds(duration, rate, epoch_length) == equal


def test_small_changes_of_the_cost_leave_the_duration_as_it_is():
    assert len({equal_seconds("1000ba", rate, None) for rate in (1.95, 2.0, 2.05)}) == 1
