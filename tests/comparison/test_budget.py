"""Budgets: what short trials cost, and how much fits."""

import pytest

from composable.comparison.budget import (
    Estimates,
    Extent,
    Rung,
    elapsed_seconds,
    equal_seconds,
    fit_budget,
    full_size,
    halving,
    parse_budget,
    short_trials,
)
from composable.comparison.records import Evaluation, Seconds, Trial, TrialResult

DURATIONS = ("1ep", "2ep", "4ep")
TRIED = {"plain": ({"lr": 1}, {"lr": 2}), "mixed": ({"lr": 1}, {"lr": 2})}
SEEDS = {"plain": (8, 9), "mixed": (8, 9)}


@pytest.mark.parametrize(
    ("budget", "seconds"),
    [("10min", 600), ("90s", 90), ("1h30m", 5400), ("1.5h", 5400), ("2 hours", 7200), (3, 3)],
)
def test_budgets_are_read(budget, seconds):
    assert parse_budget(budget) == seconds


@pytest.mark.parametrize("budget", ["ten minutes", "10", "3ep", "0min", 0, -1, float("inf")])
def test_invalid_budgets_are_errors(budget):
    with pytest.raises(ValueError, match="must be a time such as '10min'"):
        parse_budget(budget)


# --- estimates ---


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
    assert [(one.arm, one.duration) for one in trials] == [("plain", duration), ("mixed", "10sec")]
    assert {(one.seed, one.settings["lr"]) for one in trials} == {(8, 1)}


def ran(arm, duration, outcome="finished"):
    curve = (Evaluation(10, {}),)
    trial = Trial(arm, {}, duration, 8, "tuning")
    return TrialResult(trial, outcome, 10, Seconds(0.5, 0.25, 2.0, 0.1), curve)


def test_trials_cost_their_set_up_their_steps_and_their_evaluations():
    estimates = Estimates.of([ran("plain", "10ba")], epoch_length=5)
    assert estimates.seconds(ran("plain", "20ba").trial) == pytest.approx(0.75 + 4.0 + 0.4)


def test_arms_that_failed_have_no_estimate():
    estimates = Estimates.of([ran("plain", "10ba"), ran("mixed", "10ba", "failed")], None)
    assert estimates.seconds(ran("mixed", "20ba").trial) == 0.0
    assert estimates.relative_rate("mixed", "plain") == 1.0


@pytest.mark.parametrize(("duration", "epoch_length"), [("40ba", None), ("4ep", 10)])
def test_a_diverged_trial_counts_the_batches_that_it_ran(duration, epoch_length):
    diverged = ran("mixed", duration, "diverged")
    estimates = Estimates.of([ran("plain", "10ba"), diverged], epoch_length)
    assert estimates.relative_rate("mixed", "plain") == pytest.approx(1.0)


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


def test_trials_start_in_their_order_as_soon_as_a_worker_is_free():
    assert elapsed_seconds([3.0, 1.0, 1.0, 2.0], 2) == 4.0


# --- how much fits ---


def seconds(size):
    """Return the seconds of a size with trials of a second, one after the other."""
    trials = [1.0] * (sum(rung.count for rung in size.rungs) + size.seeds * size.schedules)
    return elapsed_seconds(trials, 1)


def test_without_a_budget_every_configuration_is_trained_for_the_longest_schedule():
    assert full_size(6, 5, DURATIONS, 3) == Extent(6, (Rung("4ep", 6),), 5, 3)
    assert full_size(1, 5, DURATIONS, 3).rungs == ()


def test_a_budget_that_is_large_enough_changes_nothing():
    full = full_size(6, 5, DURATIONS, 3)
    assert fit_budget(full, DURATIONS, seconds, 21) is full


def test_a_larger_budget_never_gives_less():
    full = full_size(8, 6, DURATIONS, 3)
    sizes = [fit_budget(full, DURATIONS, seconds, left) for left in range(8, 28)]
    products = [one.configurations * one.seeds * one.schedules for one in sizes]
    assert products == sorted(products)
    assert (products[0], products[-1]) == (2 * 3 * 2, 8 * 6 * 3)
    assert all(seconds(size) <= left for size, left in zip(sizes, range(8, 28), strict=True))


def test_of_a_budget_that_is_too_short_the_smallest_size_with_a_verdict_is_left():
    size = fit_budget(full_size(6, 5, DURATIONS, 3), DURATIONS, seconds, 1)
    assert (size.configurations, size.seeds, size.schedules) == (2, 3, 2)


def test_what_is_not_there_cannot_be_reduced():
    size = fit_budget(full_size(1, 2, ("1ep",), 1), ("1ep",), seconds, 2)
    assert (size.configurations, size.seeds, size.schedules) == (1, 2, 1)


@pytest.mark.parametrize(
    ("count", "rounds"),
    [
        (1, []),
        (2, [("4ep", 2)]),
        (3, [("2ep", 3), ("4ep", 2)]),
        (9, [("1ep", 9), ("2ep", 5), ("4ep", 3)]),
        (100, [("1ep", 100), ("2ep", 50), ("4ep", 25)]),
    ],
)
def test_halving_ends_with_the_longest_schedule(count, rounds):
    assert [(one.duration, one.count) for one in halving(count, ["1ep", "2ep", "4ep"])] == rounds
