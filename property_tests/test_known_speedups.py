"""Law: the analysis finds the speed-ups of simulated studies, and no others."""

from functools import partial
from pathlib import Path

import pytest
from scipy import stats

import composable
from composable.comparison.analysis import analyze
from composable.comparison.verdict import Verdict
from tests.comparison.known_answers import (
    ANSWERS,
    BY_DATA,
    NOISE,
    THREE,
    Answer,
    answer,
    build_wide,
    rates,
    tuned,
)
from tests.comparison.synthetic import draw_study
from tests.support.campaign import FULL

KNOWN = ANSWERS | {f"by data: {name}": known for name, known in BY_DATA.items()}
STUDIES = 2000 if FULL else 12
COVERAGE, WRONG, FOUND = 0.94, 0.04, 0.95
# The variance of processes is pooled unless it is larger in an arm, which few processes may hide.
LOWER_COVERAGE = {"a baseline whose processes differ by 8 % instead of 2 %": 0.925}


def at_most(rate: float, bound: float) -> bool:
    """Whether a rate is below a bound; of few studies, whether this is credible (1 in 1,000)."""
    if FULL:
        return rate <= bound
    return bool(round(rate * STUDIES) <= stats.binom.ppf(0.999, STUDIES, bound))


@pytest.mark.parametrize("name", KNOWN)
def test_intervals_and_verdicts_are_right(name: str) -> None:
    known = KNOWN[name]
    found = rates(known, STUDIES)
    print(f"{name}: covered {found.covered:.3f}, pays {found.pays:.3f}, costs {found.costs:.3f}")
    assert at_most(1 - found.covered, 1 - LOWER_COVERAGE.get(name, COVERAGE))
    if known.speedup <= 1:
        assert at_most(found.pays, WRONG)
    if known.speedup >= 1:
        assert at_most(found.costs, WRONG)
    if "step cost" in name:
        assert at_most(1 - found.pays, 1 - FOUND)


def test_eight_arms_without_a_speed_up_rarely_show_one() -> None:
    arms = dict.fromkeys("abcdefgh", 1.0)
    wrong = {Verdict.PAYS: 0, Verdict.COSTS: 0}
    for seed in range(STUDIES // 4):
        found = analyze(draw_study(seed, arms, steps=THREE, shared=NOISE, own=NOISE))
        for verdict in wrong:
            wrong[verdict] += any(arm.verdict is verdict for arm in found.arms)
    print(f"eight nulls: {wrong}")
    assert all(count <= stats.binom.ppf(0.999, STUDIES // 4, WRONG) for count in wrong.values())


def test_other_rates_are_reported() -> None:
    reported = {f"3 seeds, {one}": answer(*one, seeds=3) for one in ((1, 1), (1, 0.5), (1.3, 2))}
    for trials in (1, 2, 4):
        draw = partial(tuned, trials=trials)
        reported[f"settings chosen with {trials} seeds, whose speeds differ"] = Answer(1.0, draw)
    for name, known in reported.items():
        found = rates(known, max(5, STUDIES // 4))
        print(f"{name}: {found}")
        assert found.covered > 0.7


@pytest.mark.campaign  # it measures the costs of steps, and so must run long
def test_an_arm_whose_forward_pass_is_doubled_costs(tmp_path: Path) -> None:
    found = composable.compare(
        build_wide,
        {"two passes": []},
        metric="test/loss",
        tune={"baseline": {"passes": [1]}, "two passes": {"passes": [2]}},
        workers=2,
        folder=tmp_path,
        progress_bar=False,
    )
    arm = found.analysis["two passes"]
    assert arm.verdict is Verdict.COSTS
    assert arm.covered == 1
    assert arm.speedup is not None
    assert arm.step_cost_ratio is not None
    assert 1.6 < (arm.step_cost_ratio.value or 0) < 2.4
    assert (arm.speedup.value or 0) * (arm.step_cost_ratio.value or 0) == pytest.approx(1)
