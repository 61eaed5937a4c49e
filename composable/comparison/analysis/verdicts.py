"""Verdicts on arms, and the sentences that give their reasons."""

from collections.abc import Sequence

import attrs

from composable.comparison.analysis.distance import Kind, Shares
from composable.comparison.analysis.findings import ArmAnalysis, Estimate, SpeedupAt, Verdict

__all__ = ["COVERED", "MINIMAL_SEEDS", "Case", "judge", "show_estimate", "show_number"]

MINIMAL_SEEDS = 3
"""With fewer seeds, the verdict is "no evidence"."""
_LEVEL = 0.05
COVERED = 0.8
"""The share of the baseline's range below which a verdict is a bound."""
_EVERYWHERE = 0.95
"""The share of it on which an arm has to be faster for a bound: all but the noise."""


@attrs.frozen
class Case:
    """An arm to judge."""

    found: ArmAnalysis
    speedup: Estimate
    kind: Kind
    shares: Shares
    target: float | None
    p: float | None
    """After the correction over the arms."""
    compared: int


def judge(case: Case) -> tuple[Verdict, float | None, str]:
    """Return the verdict on an arm, its bound, and the sentence that gives the reason.

    An arm pays, or costs, if its speed-up differs from 1 with p < 0.05 after Holm's correction.
    Where the curves share less than 80 % of the baseline's range, it pays only if it is faster on
    the whole of it, since its cheapest schedule passes the other results at less cost: at least by
    the lower end of the interval. It costs only if its most expensive schedule does not reach the
    other results at more cost.
    """
    verdict, bound = _verdict(case)
    found = _SENTENCES[case.kind](case)
    if bound is not None and case.kind == "distance":
        found = f"at {'least' if bound > 1 else 'most'} {bound:.2f}x: {found}"
    return verdict, bound, "; ".join([f"{found}{_p(case)}", *_remarks(case, verdict)])


def _verdict(case: Case) -> tuple[Verdict, float | None]:
    ratio = case.speedup
    shown = case.p is not None and case.p < _LEVEL and ratio.seeds >= MINIMAL_SEEDS
    pays = ratio.low is not None and ratio.low > 1
    costs = ratio.high is not None and ratio.high < 1
    if not shown or not (pays or costs):
        return Verdict.NO_EVIDENCE, None
    verdict, bound = (Verdict.PAYS, ratio.low) if pays else (Verdict.COSTS, ratio.high)
    if case.target is not None or case.shares.both >= COVERED:
        return verdict, None
    if (case.shares.faster if pays else case.shares.slower) >= _EVERYWHERE:
        return verdict, bound
    return Verdict.NO_EVIDENCE, None


def _distance(case: Case) -> str:
    if case.target is not None:
        return f"{show_estimate(case.speedup)} at {show_number(case.target)}"
    first, last = case.found.at_results[0], case.found.at_results[-1]
    ends = " and ".join(
        f"{one.speedup.value:.2f}x at {show_number(one.result)}" for one in (first, last)
    )
    share = f"{case.shares.both:.0%} of the baseline's range of results"
    return f"{show_estimate(case.speedup)} over {share}, {ends}"


def _faster(case: Case) -> str:
    reached = "is better than the baseline's longest one"
    if case.target is not None:
        reached = f"reaches {show_number(case.target)}, or the baseline's longest one does not"
    return f"{show_estimate(case.speedup)}, since its shortest schedule {reached}"


def _slower(case: Case) -> str:
    missed = "the result of the baseline's shortest one"
    if case.target is not None:
        missed = f"{show_number(case.target)}, or the baseline's shortest one does"
    return f"{show_estimate(case.speedup)}, since its longest schedule does not reach {missed}"


_SENTENCES = {"distance": _distance, "at least": _faster, "at most": _slower}


def _remarks(case: Case, verdict: Verdict) -> list[str]:
    """Return where an arm pays and where not, and what would show more."""
    remarks = []
    faster = [
        one for one in case.found.at_results if one.speedup.low is not None and one.speedup.low > 1
    ]
    slower = [
        one
        for one in case.found.at_results
        if one.speedup.high is not None and one.speedup.high < 1
    ]
    if faster and slower:
        remarks.append(f"faster {_between(faster)}, slower {_between(slower)}")
    elif verdict is Verdict.PAYS and len(faster) < len(case.found.at_results):
        remarks.append(f"shown {_between(faster)}" if faster else "shown for the mean only")
    if case.speedup.seeds < MINIMAL_SEEDS:
        remarks.append(f"a verdict needs {MINIMAL_SEEDS} seeds")
    elif case.p is None:
        remarks.append("every seed gives the same difference: there is no spread to judge by")
    elif verdict is Verdict.NO_EVIDENCE and case.p < _LEVEL:
        remarks.append("the curves share too little of the baseline's range for a verdict")
    if case.found.needs is not None:
        remarks.append(f"add its schedule of {case.found.needs} to compare more results")
    return remarks


def _between(points: Sequence[SpeedupAt]) -> str:
    first, last = show_number(points[0].result), show_number(points[-1].result)
    return f"at {first}" if first == last else f"at {first} to {last}"


def _p(case: Case) -> str:
    if case.p is None:
        return ""
    size = "p < 0.0001" if case.p < 0.0001 else f"p = {case.p:.2g}"
    many = f" after Holm's correction over {case.compared} arms" if case.compared > 1 else ""
    return f", {size}{many}"


def show_number(value: float) -> str:
    """Show a number with three significant digits.

    Example:
        >>> from composable.comparison.analysis.verdicts import show_number
        >>> show_number(13.76), show_number(1234.5), show_number(0.00123)
        ('13.8', '1234', '0.00123')
    """
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def show_estimate(ratio: Estimate) -> str:
    """Show a ratio with its interval; open bounds by words.

    Example:
        >>> from composable.comparison.analysis.findings import Estimate
        >>> from composable.comparison.analysis.verdicts import show_estimate
        >>> show_estimate(Estimate(3.0, 2.6, 3.5, 0.001, 5))
        '3.00x (2.60 to 3.50)'
        >>> show_estimate(Estimate(None, 2.6, None, 0.001, 5))
        'at least 2.60x'
    """
    if ratio.value is not None:
        interval = "no interval" if ratio.low is None else f"{ratio.low:.2f} to {ratio.high:.2f}"
        return f"{ratio.value:.2f}x ({interval})"
    if ratio.low is not None:
        return f"at least {ratio.low:.2f}x"
    return "no bound" if ratio.high is None else f"at most {ratio.high:.2f}x"
