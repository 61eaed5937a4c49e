"""The costs of stored studies that are measured again, and how verdicts are described."""

import attrs
import pytest

from benchmarks import evidence
from composable.comparison import Comparison, Verdict
from composable.comparison.statistics import Shares
from composable.comparison.verdict import Estimate
from tests.comparison import small
from tests.comparison.synthetic import draw_study
from tools.evidence import describe_verdict


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


def test_an_interval_within_the_noise_floor_is_not_shown():
    found = Comparison(draw_study(0, {"again": 3.0, "arm": 1.3}, repeated="again", own=0.002))
    assert describe_verdict(found.analysis["arm"]) == "no evidence, within the noise floor"
