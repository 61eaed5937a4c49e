"""The answer: which group of runs is best, by how much, and what to look at."""

import statistics
from collections.abc import Iterator, Sequence

from composable.report.comparison import RunComparison
from composable.report.recorded_run import RecordedRun
from composable.report.results import GroupResult, group_results, mode_of_metric, result_names
from composable.report.sections._common import format_number
from composable.report.sections.faults import problems

__all__ = ["answer"]

_LATE = 0.75  # of the evaluations
_GAIN = 0.05  # of all that was gained, from which on a run is not converged
_FEWEST = 4  # evaluations
_WAITING = 0.3  # of the time
_MOST_RESULTS = 5
_UNKNOWN = "No result of an evaluation tells which run is best: pass an eval_dataloader."


def answer(comparison: RunComparison) -> str:
    """Answer in a few sentences: the best group, its lead, and whether it converged."""
    named = [name for name in result_names(comparison.runs) if mode_of_metric(name)]
    named = [name for name in named if group_results(comparison, name)]
    sentences = list(_answer(comparison, named)) if named else [_UNKNOWN]
    return " ".join([*sentences, *_look_at(comparison)])


def _answer(comparison: RunComparison, named: Sequence[str]) -> Iterator[str]:
    name, results = named[0], group_results(comparison, named[0])
    best = results[0]
    group, shown = comparison.groups[best.group], name.removeprefix("metrics/")
    title = comparison.group_name(group)
    if len(results) == 1:
        yield f"{title}: {shown} {_value(best)} at its best."
    else:
        yield f"{title} is best in {shown}: {_value(best)}, {_lead(comparison, best, results[1])}."
    for other in named[1:_MOST_RESULTS]:
        first = group_results(comparison, other)[0]
        if first.group != best.group:
            winner = comparison.group_name(comparison.groups[first.group])
            yield f"In {other.removeprefix('metrics/')}, {winner} is best."
    lengths = {comparison.runs[run].num_batches for one in comparison.groups for run in one}
    if len(lengths) > 1:
        yield "The runs have different numbers of batches."
    gained = late_gain([comparison.runs[run] for run in group], name)
    if gained is not None and gained > _GAIN:
        yield f"It was still improving: {gained:.0%} of its gain came in the last quarter."
    elif gained is not None:
        yield "It had converged: little changed in the last quarter."


def _value(result: GroupResult) -> str:
    mean = format_number(result.mean)
    if result.spread is None:
        return f"{mean} (one run)"
    return f"{mean} ± {format_number(result.spread, 2)} ({len(result.values)} runs)"


def _lead(comparison: RunComparison, best: GroupResult, second: GroupResult) -> str:
    """Describe the distance to the second group, and whether seeds may explain it."""
    name = comparison.group_name(comparison.groups[second.group])
    distance = f"{format_number(abs(best.mean - second.mean), 2)} ahead of {name}"
    if min(len(best.values), len(second.values)) < 2:
        return f"{distance}, which the seed may explain: repeat both with other seeds"
    low, high = sorted([best, second], key=lambda one: one.mean)
    if max(low.values) < min(high.values):
        return f"{distance}; each of its runs is better than each of {name}"
    return f"{distance}, which seeds may explain: their runs overlap"


def late_gain(runs: Sequence[RecordedRun], name: str) -> float | None:
    """Return the share of the gain in a result that came in the last quarter of some runs.

    None if a run has fewer than four evaluations, or nothing was gained.
    """
    sign = 1 if mode_of_metric(name) == "max" else -1
    curves = [
        [sign * v for _, v in run.curves[name].finite()] for run in runs if name in run.curves
    ]
    if not curves or min(map(len, curves)) < _FEWEST:
        return None
    late = statistics.mean(max(one) - max(one[: round(_LATE * len(one))]) for one in curves)
    gained = statistics.mean(max(one) - one[0] for one in curves)
    return late / gained if gained > 0 else None


def _look_at(comparison: RunComparison) -> Iterator[str]:
    failed = [run for run in comparison.runs if run.status in ("failed", "not ended")]
    if failed:
        yield f"{len(failed)} of {len(comparison.runs)} runs did not end: see Problems."
    elif problems(comparison):
        yield "See Problems."
    splits = [run.time_split for run in comparison.runs]
    waiting = [one["data"] / sum(one.values()) for one in splits if one.get("data", 0) > 0]
    if waiting and statistics.mean(waiting) > _WAITING:
        yield f"Waiting for data took {statistics.mean(waiting):.0%} of the time: see Time."
