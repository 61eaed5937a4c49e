"""Stored studies: their costs that are measured again, how verdicts are described, and claims."""

import attrs
import pytest

from benchmarks import evidence
from composable.comparison import Comparison, Verdict
from composable.comparison.statistics import Shares
from composable.comparison.verdict import Estimate
from tests.comparison import small
from tests.comparison.synthetic import draw_study, loss_after
from tools.claims import REFUSED, Counted, claimed
from tools.evidence import STUDIES, describe_verdict


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


# --- the rule by which the documentation claims that an arm pays

REACHED = loss_after(400)
QUIET = {"shared": 0.002, "own": 0.002}


def study(
    seed: int = 0, noise: float = 1.0, scale: float = 0.002, speed: float = 2.0, **changes
) -> Comparison:
    settings = {**QUIET, "repeated": "again", "steps": (50, 100, 200, 400, 800), **changes}
    own = {"plain": 0.002, "arm": 0.002, "again": scale}
    return Comparison(draw_study(seed, {"again": noise, "arm": speed}, **{**settings, "own": own}))


@pytest.mark.parametrize(
    ("comparison", "reason", "options"),
    [
        (study(), "the baseline is not tuned: its batch", {"untuned": "its batch"}),
        (study(repeated=None), "the baseline was not compared with itself", {}),
        (study(noise=1.3), "the baseline differs from itself with other seeds: 1.", {}),
        (study(seed=3, scale=0.08, speed=1.25), "is wider than the effect", {}),
        (study(), "triples reach 2.000 in 3 CPU seconds", {"counted": Counted("triples", 2.0, 3)}),
    ],
)
def test_a_claim_is_refused_with_the_reason(comparison, reason, options):
    assert comparison.verdict("arm") is Verdict.PAYS

    analysis, reasons = claimed(comparison, **options)

    assert reason in reasons["arm"]
    assert analysis["arm"].verdict is Verdict.NO_EVIDENCE
    assert analysis["arm"].why.startswith(f"{REFUSED}, since {reasons['arm']}; ")
    assert describe_verdict(analysis["arm"]) == REFUSED
    assert attrs.evolve(analysis, arms=()) == attrs.evolve(comparison.analysis, arms=())


def test_a_claim_that_nothing_speaks_against_stands():
    analysis, reasons = claimed(study(), counted=Counted("pairs", REACHED + 0.2, 0.1))

    assert not reasons
    assert analysis["arm"].verdict is Verdict.PAYS


def test_no_arm_of_the_language_study_surpasses_counting():
    found = next(one for one in STUDIES if one.name == "language")

    assert {arm.arm for arm in found.comparison.analysis.arms if arm.verdict is Verdict.PAYS} == {
        *found.refused
    }
    assert all("of counting" in reason for reason in found.refused.values())
