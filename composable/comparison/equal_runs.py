"""Runs with equal results: a seed or an arm that has no effect."""

from collections.abc import Iterable, Mapping

from composable.comparison.plan.design import Design
from composable.comparison.records import TrialResult
from composable.comparison.trials.building import BuildError

__all__ = ["check_seeds", "equal_arms"]

Run = tuple[str, int]
"""A duration and a seed."""


def check_seeds(design: Design, results: Iterable[TrialResult]) -> None:
    """Check that the runs of an arm differ: equal ones would be taken for certain results.

    Raises:
        BuildError: The runs of an arm have the same results for all seeds.
    """
    for arm, runs in _curves(design, results).items():
        longest = {seed: one for (at, seed), one in runs.items() if at == design.durations[-1]}
        if len(longest) > 1 and len(set(longest.values())) == 1:
            raise BuildError(
                f"the runs of arm {arm!r} have the same results for the seeds "
                f"{', '.join(map(str, longest))}: build does not depend on the seed, apart from "
                "passing it on. Set no seed of its own in build, and shuffle the training data; "
                "or pass seeds=1."
            )


def equal_arms(design: Design, results: Iterable[TrialResult]) -> list[str]:
    """Return a note for each arm whose results are those of an arm before it."""
    curves = _curves(design, results)
    notes: list[str] = []
    different = [design.baseline]
    for arm in design.arms:
        if arm in (design.baseline, design.repeated):
            continue
        equal = [one for one in different if curves.get(arm) and curves.get(one) == curves[arm]]
        if equal:
            notes.append(
                f"Arm {arm!r} has the same results as {equal[0]!r}: what it adds or changes has "
                "no effect on this model and data."
            )
        else:
            different.append(arm)
    return notes


def _curves(design: Design, results: Iterable[TrialResult]) -> Mapping[str, dict[Run, str]]:
    """Return the results of the evaluations of the reported runs that finished, by arm."""
    curves: dict[str, dict[Run, str]] = {arm: {} for arm in design.arms}
    for one in results:
        if one.outcome == "finished" and one.trial.purpose == "reporting":
            evaluations = str([(point.batch, dict(point.metrics)) for point in one.curve])
            curves[one.trial.arm][one.trial.duration, one.trial.seed] = evaluations
    return curves
