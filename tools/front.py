"""The front of the page about evidence: what did not pay, the calibration, costs of steps alone."""

import json
from collections.abc import Iterator
from math import inf
from statistics import median
from typing import Any

from composable.comparison.records import StepCost
from composable.comparison.verdict import ArmAnalysis, Verdict
from tests.support.cases import ROOT
from tools.evidence import STUDIES, counted_tokens, link

__all__ = ["claim_sentence", "front_lines"]

FOLDER = ROOT / "docs/evidence"
PARTS = "language-parts"


def front_lines() -> list[str]:
    """Render the three findings."""
    return [*_negative_result(), "", *_calibration(), "", *_step_costs()]


def _negative_result() -> Iterator[str]:
    """Say what additions to a tuned recipe gave."""
    study = next(one for one in STUDIES if one.name == PARTS)
    arms = [one for one in study.analysis.arms if one.role == "arm"]
    added = [one for one in arms if not one.arm.startswith("without ")]
    counts = {one: sum(arm.verdict is one for arm in added) for one in Verdict}
    ends = [one.speedup.high for one in added if one.speedup and one.speedup.high]
    costing = [f"{one.arm} ({_interval(one)})" for one in added if one.verdict is Verdict.COSTS]
    counted = counted_tokens()
    yield "## The clearest result is negative"
    yield ""
    yield (
        f"{len(added)} methods, settings and schedules were added to a tuned recipe for a small "
        f"GPT, one at a time: **{counts[Verdict.PAYS] or 'none'} pays, and {counts[Verdict.COSTS]} "
        f"cost.** The 95 % intervals of their speed-ups end at {median(ends):.2f}x in the median, "
        f"and at {max(ends):.2f}x at most, so larger effects would have been seen. [The parts of "
        "speedrun_gpt](#the-parts-of-speedrun_gpt) has all arms, each with three seeds."
    )
    yield ""
    yield f"What costs: {'; '.join(costing)}."
    yield ""
    yield f"**{claim_sentence()}**"
    yield (
        "A claim needs a tuned baseline, a repeated baseline that agrees with it, an effect "
        "wider than the interval of these two, and results that counting does not reach. On "
        f"PyTorch's source alone {counted.name}, interpolated by Kneser-Ney, reach "
        f"{counted.result:.3f} nats per byte after {counted.seconds:.0f} CPU seconds of counting, "
        "and all networks that were compared on it are above that over the results that they share."
    )


def claim_sentence(page: str = "") -> str:
    """Say which speed-ups are claimed.

    Args:
        page: The path of docs/evidence.md from the page with the sentence.
    """
    claims = [
        f"{arm.arm} on {link(study, page)}, {arm.speedup} over "
        f"{study.comparison.study.protocol.baseline}"
        for study in STUDIES
        for arm in study.analysis.arms
        if arm.verdict is Verdict.PAYS
    ]
    if not claims:
        return "No speed-up is claimed."
    return f"Claimed, on two CPU cores and for minutes of training: {'; '.join(claims)}."


def _interval(arm: ArmAnalysis) -> str:
    ratio = arm.speedup
    assert ratio is not None
    return str(ratio).replace("x (", "x, ").rstrip(")")


def _calibration() -> Iterator[str]:
    """Render how often `compare` is right where the truth is known."""
    rows: list[dict[str, Any]] = json.loads((FOLDER / "calibration.json").read_text())
    yield "## How often compare is right"
    yield ""
    yield (
        f"Of {rows[0]['studies']} simulated studies of each kind, with known speed-ups: the share "
        "whose 95 % interval has the speed-up, and the verdicts. Repeat with `python "
        "benchmarks/calibration.py`."
    )
    yield ""
    yield "| the arm | speed-up | covered | pays | costs |"
    yield "|---|---|---|---|---|"
    for row in rows:
        shares = " | ".join(f"{row[name]:.1%}" for name in ("covered", "pays", "costs"))
        yield f"| {row['kind']} | {row['speedup']:.3g} | {shares} |"


def _step_costs() -> Iterator[str]:
    """Render what a step costs with a method that leaves the result as it is."""
    measured: dict[str, Any] = json.loads((FOLDER / "step_costs.json").read_text())
    yield "## Costs of steps alone"
    yield ""
    yield (
        "What a step costs, divided by a plain one, in CPU seconds of one thread, with 95 % "
        "intervals and the number n of processes that measured it. Results are not part of it. "
        "[Compilation](performance.md#compilation) is not counted. The processor has no "
        "instructions for [bfloat16](precision.md#what-changes-in-the-numbers), which PyTorch "
        "then emulates. Repeat the ResNet-8 with `python benchmarks/step_costs.py`."
    )
    yield ""
    yield "| the step | of | n | step / plain |"
    yield "|---|---|---|---|"
    for kind, *ratio in measured["ratios"]:
        yield _cost_row(kind, "a ResNet-8", measured["processes"], *ratio)
    for name in ("vision", "mnist"):
        study = next(one for one in STUDIES if one.name == name)
        arm = study.analysis["ChannelsLast"]
        cost: StepCost = arm.qualities[-1].cost
        ratio = arm.step_cost_ratio
        assert ratio is not None
        ends = ratio.low or 0.0, ratio.high or inf
        yield _cost_row("channels last", study.place, cost.processes, ratio.value, *ends)


def _cost_row(kind: str, of: str, processes: int, ratio: float, low: float, high: float) -> str:
    return f"| {kind} | {of} | {processes} | {ratio:.2f} ({low:.2f} to {high:.2f}) |"
