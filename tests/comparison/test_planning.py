"""Seeds, schedules and budgets."""

import pytest

from composable import Time
from composable.comparison.plan.planning import (
    Seeds,
    Size,
    check_durations,
    default_durations,
    fit_budget,
    full_size,
    parse_budget,
    reporting_trials,
)
from composable.comparison.plan.tuning import Rung

DURATIONS = ("1ep", "2ep", "4ep")


# --- seeds ---


@pytest.mark.parametrize("given", [(5, 2), (1, 1), (2000, 3), ([7, 4000, 12], [1, 2]), (3, [5])])
def test_the_four_groups_of_seeds_are_disjoint(given):
    seeds = Seeds.of(*given)
    groups = [seeds.reporting, seeds.repeated, seeds.tuning, seeds.repeated_tuning]
    together = [seed for group in groups for seed in group]
    assert len(set(together)) == len(together)
    assert len(seeds.repeated) == len(seeds.reporting)
    assert len(seeds.repeated_tuning) == len(seeds.tuning)


def test_more_seeds_keep_those_of_fewer():
    few, many = Seeds.of(5, 2), Seeds.of(20, 4)
    for group in ("reporting", "repeated", "tuning", "repeated_tuning"):
        fewer = getattr(few, group)
        assert getattr(many, group)[: len(fewer)] == fewer


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ((0, 2), ValueError, "seeds=0 must be at least 1"),
        ((5, 0), ValueError, "tuning_seeds=0 must be at least 1"),
        ((True, 2), TypeError, "seeds=True must be a number of seeds"),
        (("5", 2), TypeError, "seeds='5' must be a number of seeds"),
        (([1.5], 2), TypeError, "must be integers"),
        (([], 2), ValueError, "at least one seed"),
        (([1, 1], 2), ValueError, "listed twice"),
        (([-1], 2), ValueError, "none negative"),
        ((3, [2, 9]), ValueError, r"tuning_seeds=\[2, 9\] has \[2\], which are reported"),
    ],
)
def test_invalid_seeds_are_errors(given, error, message):
    with pytest.raises(error, match=message):
        Seeds.of(*given)


# --- schedules ---


@pytest.mark.parametrize(
    ("longest", "durations"),
    [
        ("8ep", ("2ep", "4ep", "8ep")),
        ("10ep", ("2ep", "5ep", "10ep")),
        ("1ep", ("1ep",)),
        ("2ep", ("1ep", "2ep")),
        ("100ba", ("25ba", "50ba", "100ba")),
    ],
)
def test_the_default_schedules_are_a_quarter_a_half_and_the_whole(longest, durations):
    assert default_durations(longest) == durations


def test_durations_are_sorted_and_listed_once():
    assert check_durations(["8ep", "2ep", Time("4ep"), 2]) == ("2ep", "4ep", "8ep")
    assert check_durations("100ba") == ("100ba",)


@pytest.mark.parametrize(
    ("durations", "message"),
    [
        ([], "must be lengths of runs"),
        (["0ep"], "must be lengths of runs"),
        (["0.5dur"], "must be lengths of runs"),
        (["2ep", "100ba"], "must have one unit"),
        (["2x"], "durations='2x'"),
    ],
)
def test_invalid_durations_are_errors(durations, message):
    with pytest.raises(ValueError, match=message):
        check_durations(durations)


def test_reported_trials_have_the_same_seeds_for_all_arms_and_end_seed_by_seed():
    seeds = {"plain": (0, 1), "mixed": (0, 1), "again": (1000, 1001)}
    settings = {arm: {"lr": arm} for arm in seeds}
    schedules = {"plain": ["1ep", "2ep"], "mixed": ["3ep"], "again": ["1ep", "2ep"]}
    trials = reporting_trials(list(seeds), settings, schedules, seeds.__getitem__)
    assert len(trials) == 10
    assert {(one.arm, one.seed) for one in trials[:5]} == {
        ("plain", 0),
        ("mixed", 0),
        ("again", 1000),
    }
    assert [one.duration for one in trials if one.arm == "mixed"] == ["3ep", "3ep"]
    assert all(one.settings == {"lr": one.arm} for one in trials)
    assert {one.purpose for one in trials} == {"reporting"}


# --- budgets ---


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


def test_without_a_budget_every_configuration_is_trained_for_the_longest_schedule():
    assert full_size(6, 5, DURATIONS) == Size(6, (Rung("4ep", 6),), 5)
    assert full_size(1, 5, DURATIONS).rungs == ()


def cost(size, budget):
    """Return trials of a unit each as a fraction of the budget."""
    return (sum(rung.count for rung in size.rungs) + size.seeds) / budget


def test_a_budget_that_is_large_enough_changes_nothing():
    full = full_size(6, 5, DURATIONS)
    assert fit_budget(full, DURATIONS, lambda size: cost(size, 11)) is full


def test_a_smaller_budget_takes_the_largest_size_that_fits():
    full = full_size(6, 5, DURATIONS)
    size = fit_budget(full, DURATIONS, lambda size: cost(size, 10.5))
    assert cost(size, 10.5) <= 1
    assert size.configurations >= 2
    assert size.seeds >= 3
    assert size != full


def test_larger_budgets_never_give_less():
    full = full_size(8, 6, DURATIONS)
    products = [
        size.configurations * size.seeds
        for size in (
            fit_budget(full, DURATIONS, lambda size, b=budget: cost(size, b))
            for budget in range(5, 20)
        )
    ]
    assert products == sorted(products)
    assert products[-1] == 48


def test_a_budget_that_is_too_small_takes_the_smallest_size():
    size = fit_budget(full_size(6, 5, DURATIONS), DURATIONS, lambda size: cost(size, 1))
    assert (size.configurations, size.seeds) == (2, 3)


def test_without_tuning_a_budget_takes_seeds_away():
    size = fit_budget(full_size(1, 9, DURATIONS), DURATIONS, lambda size: cost(size, 4))
    assert size == Size(1, (), 4)
