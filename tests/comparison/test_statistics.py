import math
import random

import attrs
import pytest
from scipy import stats

from composable.comparison.analysis.statistics import (
    Spread,
    cost_ratio,
    holm,
    lower_bound,
    paired_estimate,
    power_of,
)
from composable.comparison.analysis.times import Curve, compare_times, crossing_time


def test_the_interval_and_the_p_value_are_those_of_the_paired_t_test() -> None:
    arm, base = [2.1, 2.4, 2.2, 2.9], [2.0, 2.1, 2.3, 2.2]
    expected = stats.ttest_rel(arm, base)
    found = paired_estimate([a - b for a, b in zip(arm, base, strict=True)])
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval()))


def test_a_shared_error_widens_the_interval() -> None:
    assert paired_estimate([1.0, 2.0], 3.0).low < paired_estimate([1.0, 2.0]).low


def test_the_bootstrap_is_repeatable_and_narrower_with_few_pairs() -> None:
    found = paired_estimate([1.0, 2.0, 4.0], resamples=500)
    assert found == paired_estimate([1.0, 2.0, 4.0], resamples=500)
    assert found.low < found.resampled[0] < found.resampled[1] < found.high


@pytest.mark.parametrize("same", [[1.5], [1.5, 1.5, 1.5]])
def test_without_spread_there_is_no_p_value(same: list[float]) -> None:
    found = paired_estimate(same)
    assert (found.value, found.low, found.high, found.p) == (1.5, None, None, None)


def test_no_difference_at_all_has_p_1() -> None:
    assert paired_estimate([0.0, 0.0, 0.0]).p == 1.0


def test_no_pairs_give_no_estimate() -> None:
    assert paired_estimate([]).value is None
    assert lower_bound([1.0]) is None


def test_the_lower_bound_is_one_sided() -> None:
    expected = stats.ttest_1samp([1.0, 2.0, 3.0], 0.0, alternative="greater")
    assert lower_bound([1.0, 2.0, 3.0]) == pytest.approx(expected.confidence_interval(0.95).low)


def test_holm_steps_down_and_stays_monotone() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx((0.06, 0.03, 0.06))
    assert holm([0.9, 0.8]) == (1.0, 1.0)
    assert holm([]) == ()


def test_the_power_at_the_detectable_effect_is_80_percent() -> None:
    found = power_of(Spread(0.1), 4, 1.3)
    rng, effect = random.Random(0), math.log(found.detectable)
    draws = [[rng.gauss(effect, 0.1) for _ in range(4)] for _ in range(4000)]
    hits = (stats.ttest_1samp(draws, 0.0, axis=1).pvalue < 0.05).mean()
    assert hits == pytest.approx(0.8, abs=0.025)


def test_seeds_do_not_reduce_an_error_that_they_share() -> None:
    alone, shared = power_of(Spread(0.1), 4, 1.2), power_of(Spread(0.1, shared=0.05), 4, 1.2)
    assert shared.detectable == pytest.approx(alone.detectable ** math.sqrt(2))
    assert shared.seeds_for_observed > alone.seeds_for_observed
    assert power_of(Spread(0.1, shared=0.2), 4, 1.2).seeds_for_observed is None


def test_more_seeds_than_a_thousand_are_not_named() -> None:
    assert power_of(Spread(5.0), 3, 1.0001).seeds_for_observed is None
    assert power_of(Spread(0.1), 3, None).seeds_for_observed is None


def test_the_uncertainty_of_a_cost_shrinks_with_its_noise() -> None:
    base = [[1.0, 1.02, 1.01, 1.3, 1.0, 1.01]]
    found, error = cost_ratio(base, [[2 * one for one in base[0]]], 2.0)
    assert found.value == 2.0
    assert error == pytest.approx(0.0, abs=1e-12)  # the rounds are paired
    _, noisy = cost_ratio(base, [[2.0, 2.5, 2.1, 1.9, 2.2, 2.4]], 2.0)
    assert noisy > 0.01


BASE = Curve((0.0, 1.0, 2.0), ((1.0, 1.2, 1.1), (2.0, 2.2, 2.1), (3.0, 3.2, 3.1)))


def test_the_mean_crosses_between_schedules_only() -> None:
    assert crossing_time(BASE, 1.6) == pytest.approx(0.5)
    assert crossing_time(BASE, 3.2) is None
    assert crossing_time(BASE, 1.0) == -float("inf")


def test_a_shifted_curve_has_the_ratio_of_the_shift() -> None:
    noisy = ((2.0, 2.1, 2.2), (3.05, 3.1, 3.2), (4.0, 4.1, 4.3))
    found = compare_times(BASE, Curve((0.0, 1.0, 2.0), noisy), 2.6)
    assert found.ratio.value == pytest.approx(2.718, rel=0.05)
    assert found.gain > 0
    assert found.ratio.p < 0.05


def test_the_error_of_the_costs_is_a_part_of_the_spread_that_pairs_share() -> None:
    arm = Curve((0.0, 1.0, 2.0), ((1.1, 1.2, 1.0), (2.1, 2.0, 2.2), (3.2, 3.1, 3.0)))
    exact, rough = (compare_times(BASE, arm, None, cost_error=one).spread for one in (0.0, 0.1))
    assert (exact.shared, rough.shared) == pytest.approx((0.0, 0.1))
    assert exact.pair == rough.pair > 0


def test_an_arm_that_ends_too_early_and_is_worse_shows_nothing() -> None:
    short = Curve((0.0, 0.5), ((0.9, 1.0, 1.2), (1.3, 1.5, 1.2)))
    assert compare_times(BASE, short, None).ratio.p == 1.0


def draw_pair(seed: int) -> tuple[Curve, Curve]:
    """Draw the curves of a baseline and of an arm that is a little better or worse."""
    rng = random.Random(seed)
    shift, times = rng.uniform(-0.3, 0.5), (0.0, 0.7, 1.4)
    base = [[time + rng.gauss(0, 0.1) for _ in range(4)] for time in times]
    arm = [[one + shift + rng.gauss(0, 0.15) for one in row] for row in base]
    return Curve(times, tuple(map(tuple, base))), Curve(times, tuple(map(tuple, arm)))


def test_the_interval_contains_1_if_and_only_if_the_p_value_is_at_least_5_percent() -> None:
    outside = 0
    for seed in range(300):
        found = compare_times(*draw_pair(seed), 1.0)
        if found is not None:
            low, high = found.ratio.low or 0.0, found.ratio.high or math.inf
            assert (low <= 1 <= high) == (found.ratio.p >= 0.05) or 1 in (low, high)
            outside += found.ratio.p < 0.05
    assert 30 < outside < 270


def test_a_baseline_that_does_not_reach_the_target_gives_no_ratio() -> None:
    assert compare_times(BASE, BASE, 9.0) is None
    assert compare_times(BASE, BASE, 0.5) is None


def test_an_arm_that_is_always_better_has_an_open_bound() -> None:
    better = attrs.evolve(BASE, results=((5.0, 5.3, 5.1), (6.0, 6.1, 6.3), (7.0, 7.2, 7.3)))
    found = compare_times(BASE, better, None).ratio
    assert found.value is None
    assert found.high is None
    assert found.low == pytest.approx(7.389, rel=1e-3)
