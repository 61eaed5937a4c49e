"""The costs of stored studies that are measured again, and the performance profile of several."""

from math import inf

import attrs
import pytest

from benchmarks import evidence
from composable.comparison import Comparison, Verdict
from composable.comparison.statistics import Shares
from composable.comparison.verdict import Estimate
from tests.comparison import small
from tests.comparison.synthetic import draw_study, loss_after
from tools.evidence import describe_verdict
from tools.performance_profile import cost_to, performance_profile, profile_lines


def test_a_study_gets_costs_that_are_measured_now(monkeypatch):
    study = draw_study(0, {"other": 1.0})
    found = tuple(attrs.evolve(one, processes=2) for one in study.costs)
    measured = []

    def measure(pool, given):
        measured.append((list(pool.subject.arms), pool.count, given))
        return found, notes

    monkeypatch.setattr(evidence, "measure_costs", measure)
    arguments = {"build": small.build, "arms": {"other": []}, "metric": "test/accuracy"}
    notes = []
    assert evidence.with_new_costs(study, arguments) == attrs.evolve(study, costs=found)
    assert measured == [(["baseline", "other", "baseline (repeated)"], 1, study)]

    notes = ["the cost of a step of arm 'other' cannot be measured: no memory"]
    with pytest.raises(RuntimeError, match="no memory"):
        evidence.with_new_costs(study, arguments)


@pytest.mark.parametrize(
    ("low", "p", "seeds", "covered", "said"),
    [
        (1.3, 0.07, 5, 0.9, " before Holm's correction"),
        (1.3, 0.004, 5, 0.41, " over 41% of the results only"),
        (1.3, 0.004, 2, 0.9, " from 2 seeds only"),
        (0.9, 0.2, 2, 0.41, ""),
    ],
)
def test_an_interval_on_one_side_of_1_without_a_verdict_says_why(low, p, seeds, covered, said):
    arm = attrs.evolve(
        Comparison(draw_study(0, {"other": 1.0})).analysis["other"],
        speedup=Estimate(1.6, low, 2.0, 0.004, seeds),
        shares=Shares(covered, covered, covered),
        p=p,
    )
    assert describe_verdict(arm) == f"no evidence, × 1.6 ({low} to 2){said}"
    assert describe_verdict(attrs.evolve(arm, verdict=Verdict.PAYS)) == f"pays, × 1.6 ({low} to 2)"


def test_a_missed_target_is_within_no_factor_of_the_best():
    costs = {"a": [1.0, 4.0, inf, 1.0], "b": [2.0, inf, inf, 1.05]}
    assert performance_profile(costs, [1, 1.1, 2, 1e9]) == {
        "a": [0.75, 0.75, 0.75, 0.75],
        "b": [0.0, 0.25, 0.5, 0.5],
    }


def test_the_cost_of_a_target_is_where_the_curve_reaches_it():
    study = draw_study(0, {"fast": 2.0}, shared=0.0, own=0.0, cost_noise=0.0, process_noise=0.0)
    comparison = Comparison(study)
    targets = [loss_after(800), loss_after(200), loss_after(50)]
    assert cost_to(comparison, "plain", targets) == pytest.approx([8.0, 2.0, 1.0])
    assert cost_to(comparison, "fast", targets) == pytest.approx([4.0, 1.0, 1.0])
    assert cost_to(comparison, "plain", [loss_after(1600)]) == [inf]


def test_the_profile_has_the_arms_that_two_studies_share():
    studies = {
        "one": Comparison(draw_study(0, {"fast": 2.0, "alone": 1.0}, own=0.001)),
        "two": Comparison(draw_study(1, {"fast": 3.0}, own=0.001)),
        "three": Comparison(draw_study(2, {"another": 1.0})),
    }
    _, _, baseline, fast = profile_lines(studies)
    assert baseline.split(" | ")[:3] == ["| one, two", "baseline", "20%"]
    assert fast.split(" | ")[1:4:2] == ["fast", "100%"]
    assert fast.endswith("| 0 of 10 |")
