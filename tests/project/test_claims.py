"""The rule by which the documentation claims that an arm pays."""

import attrs
import pytest

from composable.comparison import Comparison, Verdict
from tests.comparison.synthetic import draw_study, loss_after
from tools.claims import REFUSED, Counted, claimed
from tools.evidence import STUDIES, describe_verdict

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
