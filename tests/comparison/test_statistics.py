import random
from math import log

import numpy as np
import pytest
from scipy import stats

from composable.comparison.statistics import (
    CostCurve,
    VariancePart,
    cost_error,
    extension,
    holm,
    intervals_of,
    mean_interval,
    measure,
    rounds_error,
    shares_of,
)

EXACT = VariancePart(0.0, 1)


def curve(costs: list[float], results: list[float], noise: float = 0.01) -> CostCurve:
    """Return a curve of four seeds with some noise, whose mean is exact."""
    offsets = noise * np.array([-1.0, 1.0, -2.0, 2.0])
    rows = [np.roll(offsets, i) + one for i, one in enumerate(results)]
    return CostCurve(np.log(costs), np.asarray(rows))


def test_the_interval_of_a_mean_is_that_of_the_t_test() -> None:
    expected = stats.ttest_1samp([1.0, 2.0, 4.0], 0.0).confidence_interval()
    assert mean_interval([1.0, 2.0, 4.0]) == pytest.approx(tuple(expected))
    assert mean_interval([1.0]) == (None, None)


def test_errors_of_several_sources_add_up() -> None:
    (found,) = intervals_of(np.array([[1.0]]), [VariancePart(0.04, 4), VariancePart(0.09, 9)])
    degrees = 0.13**2 / (0.04**2 / 4 + 0.09**2 / 9)
    assert found.high - 1 == pytest.approx(stats.t.ppf(0.975, degrees) * 0.13**0.5)


def test_an_interval_covers_those_of_the_alternatives() -> None:
    (found,) = intervals_of(np.array([[1.0], [-2.0]]), [VariancePart(0.01, 4)])
    assert found.value == 1
    assert found.low < -2
    assert found.p == 1


def test_an_effect_without_a_spread_has_no_p_value() -> None:
    effect, none = intervals_of(np.array([[0.7, 0.0]]), [EXACT])
    assert effect.p is None
    assert none.p == 1


def test_the_mean_distance_is_the_ratio_of_costs() -> None:
    base, arm = curve([1, 2, 4], [1, 2, 3]), curve([0.5, 1, 2], [1, 2, 3])
    found = measure(base, arm, cost=EXACT)
    assert found.mean.value == pytest.approx(log(2))
    assert [one.value for one in found.at] == pytest.approx([log(2)] * 33)
    assert found.results[0] == pytest.approx(1)
    assert found.results[-1] == pytest.approx(3)


def test_swapped_roles_give_the_reciprocal() -> None:
    base, arm = curve([1, 2, 4], [1, 2, 3]), curve([1, 3, 5], [1.5, 2.2, 3.5])
    there, back = measure(base, arm, cost=EXACT), measure(arm, base, cost=EXACT)
    assert there.mean.low == pytest.approx(-back.mean.high)
    assert there.mean.value == pytest.approx(-back.mean.value)


def test_the_error_of_costs_widens_the_interval() -> None:
    base, arm = curve([1, 2, 4], [1, 2, 3]), curve([1, 2, 4], [1, 2, 3])
    found = measure(base, arm, cost=VariancePart(0.01, 11))
    assert found.mean.high == pytest.approx(stats.t.ppf(0.975, 11) * 0.1)


def test_unpaired_seeds_have_wider_intervals_than_paired_ones() -> None:
    base, arm = curve([1, 2, 4], [1, 2, 3]), curve([0.5, 1, 2], [1, 2, 3])
    paired, unpaired = (measure(base, arm, paired=p, cost=EXACT) for p in (True, False))
    assert unpaired.mean.high > paired.mean.high + 0.001


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    offsets = np.array([0.01, -0.02, 0.03, -0.01])
    base = curve([1, 2, 4], [1, 2, 3], noise=0.0)
    arm = CostCurve(base.log_costs, base.results + offsets)  # each seed shifts the whole curve
    found = measure(base, arm, cost=EXACT)
    error = log(2) * offsets.std(ddof=1) / 2  # of four seeds
    assert (found.mean.high - found.mean.low) / 2 == pytest.approx(
        stats.t.ppf(0.975, 3) * error, rel=0.05
    )


def test_results_that_get_worse_count_as_a_plateau() -> None:
    base = curve([1, 2, 4, 8], [1, 2.2, 1.8, 3])
    found = measure(base, curve([1, 2, 4, 8], [1, 2, 2, 3]), cost=EXACT)
    assert found.mean.value == pytest.approx(0, abs=1e-6)


def test_noise_as_large_as_the_range_gives_no_distance() -> None:
    noisy = curve([1, 2, 4], [1, 1.1, 1.2], noise=0.5)
    assert measure(noisy, curve([1, 2, 4], [1, 2, 3]), cost=EXACT) is None


@pytest.mark.parametrize(("results", "kind"), [([4, 5, 6], "at least"), ([-2, -1, 0], "at most")])
def test_curves_that_do_not_overlap_give_a_bound(results: list[float], kind: str) -> None:
    base, arm = curve([1, 2, 4], [1, 2, 3]), curve([0.5, 1, 8], results)
    found = measure(base, arm, cost=EXACT)
    assert found.kind == kind
    end = log(0.5) if kind == "at least" else log(8)
    assert found.mean.value == pytest.approx(log(2) - end, abs=0.01)


@pytest.mark.parametrize("paired", [True, False])
def test_ends_that_differ_by_chance_give_no_bound(paired: bool) -> None:
    """Seeds whose results fluctuate end above the baseline's best one every other time."""
    flat = np.array([[0.28, 0.26, 0.26], [0.26, 0.26, 0.26]])
    base = CostCurve(np.log([1.0, 4.0]), np.array([[0.18, 0.26, 0.26], [0.26, 0.26, 0.26]]))
    arm = CostCurve(np.log([1.0, 4.0]), flat)
    assert arm.ends[0] > base.ends[1]
    assert measure(base, arm, paired=paired, cost=EXACT) is None
    assert measure(arm, base, paired=paired, cost=EXACT) is None
    clear = measure(base, CostCurve(arm.log_costs, flat + 0.1), paired=paired, cost=EXACT)
    assert clear.kind == "at least"


def test_an_end_that_is_near_a_target_by_chance_gives_no_bound() -> None:
    base, arm = curve([1, 2, 4], [1, 2, 3], noise=0.1), curve([1, 2, 4], [0, 1, 2], noise=0.1)
    for near, far in [(0.97, 0.7), (2.03, 2.3)]:  # below the baseline's worst, above the arm's best
        assert measure(base, arm, level=near, cost=EXACT) is None
        assert measure(base, arm, level=far, cost=EXACT) is not None


def test_a_target_is_the_only_result() -> None:
    base, arm = curve([1, 2, 4], [1, 2, 3]), curve([0.5, 1, 2], [1.5, 2.5, 3.5])
    found = measure(base, arm, level=2.0, cost=EXACT)
    assert found.results == (2.0,)
    assert found.mean.value == found.at[0].value
    kinds = [getattr(measure(base, arm, level=at, cost=EXACT), "kind", None) for at in (1.2, 3.2)]
    assert kinds == ["at least", "at least"]  # the arm's first schedule; the baseline never
    assert measure(base, arm, level=9.0, cost=EXACT) is None


def test_shares_of_the_range_of_the_baseline() -> None:
    base = curve([1, 2, 4], [1, 2, 3])
    assert shares_of(base, curve([1, 2, 4], [2, 3, 4])) == pytest.approx((0.5, 1, 0.5), abs=0.01)
    costly = curve([2, 4, 8], [2, 3, 4])  # it may cost more where the baseline takes less than 2
    assert shares_of(base, costly) == pytest.approx((0.5, 0.5, 0.5), abs=0.01)
    slower = curve([1, 4, 16], [0, 1, 2])
    assert shares_of(base, slower) == pytest.approx((0.5, 0.5, 1), abs=0.01)


def test_the_schedule_to_add_is_beyond_the_end_with_the_larger_gap() -> None:
    base = curve([1, 2, 4], [1, 2, 3])
    assert extension(base, curve([1, 2, 4], [2, 3, 4]), None) == pytest.approx(1 / 2, rel=0.05)
    assert extension(base, curve([1, 2, 4], [0, 1, 2]), None) == pytest.approx(2, rel=0.05)
    assert extension(base, curve([1, 2, 4], [0, 2, 4]), None) is None
    assert extension(base, curve([1, 2, 4], [90, 91, 92]), None) == pytest.approx(1 / 8)


def test_holm_steps_down_and_stays_monotone() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx((0.06, 0.03, 0.06))
    assert holm([0.9, 0.8]) == (1.0, 1.0)
    assert holm([]) == ()


@pytest.mark.parametrize(
    ("spread", "processes"),
    [
        ([0.05] * 2, 2),
        *(([0.05] * arms, 4) for arms in (2, 3, 9)),
        ([0.02, 0.15, *[0.02] * 7], 4),
        ([0.02, 0.08, *[0.02] * 7], 4),
        ([0.15, 0.02, *[0.02] * 7], 4),
        ([0.02, 0.15, 0.02], 4),
    ],
)
def test_the_interval_of_a_ratio_of_costs_has_the_ratio(
    spread: list[float], processes: int
) -> None:
    rng, arms = np.random.default_rng(len(spread)), len(spread)
    costs = rng.normal(0, 0.3, (1000, 1, processes)) + rng.normal(
        0, np.array(spread)[:, None], (1000, arms, processes)
    )
    covered, pooled = [], 0
    for logs in costs:
        part = cost_error(logs, 0, 1)
        (found,) = intervals_of(np.full((1, 1), (logs[1] - logs[0]).mean()), [part])
        covered.append(found.low <= 0 <= found.high)
        pooled += part.degrees == (arms - 1) * (processes - 1)
    assert np.mean(covered) >= 0.935
    if len(set(spread)) == 1:  # about half of the intervals have the degrees of freedom of all arms
        assert pooled > 400
        assert np.mean(covered) <= 0.985


def test_with_one_process_a_ratio_of_costs_has_the_error_of_its_rounds_and_of_processes() -> None:
    rng = random.Random(0)

    def rounds(cost: float) -> list[list[float]]:
        return [[cost * (1 + rng.expovariate(50)) for _ in range(20)] for _ in range(2)]

    part = rounds_error(rounds(1.0), rounds(2.0))
    assert part.degrees == 19
    assert 0.05 < part.variance**0.5 < 0.051
    assert rounds_error([[1.0]], [[2.0]]).variance == 0
