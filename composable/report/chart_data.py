"""The data of the charts, as JSON."""

from collections.abc import Sequence
from typing import Any

from composable.report.comparison import RunComparison
from composable.report.curves import Curve, Drawn, thin
from composable.report.lines import visible
from composable.report.metrics import color_of, shown_metrics
from composable.report.recorded_run import RecordedRun

_MOST_POINTS = 700  # intervals of one curve: about as many as a chart has pixels
_FEWEST_POINTS = 20
_POINTS_OF_ALL = 200_000  # about three megabytes
_MOST_MARKS = 50
_MOST_TIMES = 400


def chart_data(comparison: RunComparison) -> dict[str, Any]:
    """Return what the page draws, as plain values."""
    runs, metrics = comparison.runs, shown_metrics(run.curves for run in comparison.runs)
    num_curves = sum(name in run.curves for run in runs for name in metrics)
    most = min(_MOST_POINTS, max(_FEWEST_POINTS, _POINTS_OF_ALL // (3 * max(num_curves, 1))))
    return {
        "runs": [
            {
                "name": visible(name),
                "group": comparison.group_of(index),
                "color": color_of(comparison.group_of(index)),
                "epochLength": run.epoch_length,
                "samples": _clock(run.clock.samples),
                "seconds": _clock(run.clock.seconds),
            }
            for index, (run, name) in enumerate(zip(runs, comparison.names, strict=True))
        ],
        "groups": [
            {"name": visible(comparison.group_name(group)), "color": color_of(index)}
            for index, group in enumerate(comparison.groups)
        ],
        "charts": [_chart(name, runs, most) for name in metrics],
    }


def _chart(name: str, runs: Sequence[RecordedRun], most: int) -> dict[str, Any]:
    curves = {i: run.curves[name] for i, run in enumerate(runs) if name in run.curves}
    drawn = thin(list(curves.values()), most)
    return {
        "name": visible(name),
        "dense": any(len(curve) > 100 for curve in curves.values()),
        "curves": [
            {"run": index, **_curve(curve, one)}
            for (index, curve), one in zip(curves.items(), drawn, strict=True)
        ],
    }


def _curve(curve: Curve, drawn: Drawn) -> dict[str, Any]:
    bad = curve.nonfinite()
    found: dict[str, Any] = {
        "x": [batch for batch, _ in drawn.points],
        "y": [_rounded(value) for _, value in drawn.points],
    }
    if drawn.means is not None:
        found["meanX"] = [_rounded(batch) for batch, _ in drawn.means]
        found["meanY"] = [_rounded(value) for _, value in drawn.means]
    if bad:
        found["notFinite"] = bad[:: -(-len(bad) // _MOST_MARKS)]
    return found


def _clock(curve: Curve) -> list[list[float]]:
    points = list(curve.finite())
    step = max(1, -(-len(points) // _MOST_TIMES))
    kept = points[::step] + ([points[-1]] if points and (len(points) - 1) % step else [])
    return [[batch for batch, _ in kept], [_rounded(value) for _, value in kept]]


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
