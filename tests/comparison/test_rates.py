"""What short trials say of the costs of steps."""

import pytest

from composable.comparison.rates import Rates, equal_seconds, shortened
from composable.comparison.records import Evaluation, Seconds, Trial, TrialResult


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
    assert shortened(shortest, epoch_length) == duration


def ran(arm, duration, outcome="finished"):
    curve = (Evaluation(10, {}),)
    trial = Trial(arm, {}, duration, 8, "tuning")
    return TrialResult(trial, outcome, 10, Seconds(0.5, 0.25, 2.0, 0.1), curve)


def test_arms_that_failed_have_the_rate_of_the_baseline():
    rates = Rates.of([ran("plain", "10ba"), ran("mixed", "10ba", "failed")], None)
    assert rates.relative_rate("mixed", "plain") == 1.0


@pytest.mark.parametrize(("duration", "epoch_length"), [("40ba", None), ("4ep", 10)])
def test_a_diverged_trial_counts_the_batches_that_it_ran(duration, epoch_length):
    diverged = ran("mixed", duration, "diverged")
    rates = Rates.of([ran("plain", "10ba"), diverged], epoch_length)
    assert rates.relative_rate("mixed", "plain") == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("duration", "rate", "epoch_length", "equal"),
    [
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
