"""Figures of recorded runs, by plotly."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from composable.report.drawing import draw_curves
from composable.report.lines import folder_names
from composable.report.recorded_run import RecordedRun

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["plot_runs"]


def plot_runs(runs: Sequence[RecordedRun], metrics: str | Sequence[str] | None = None) -> "Figure":
    """Plot metrics of one or several runs with plotly; notebooks show the figure.

    Curves of more than 2000 points are thinned, with their extremes.

    Args:
        runs: The runs, at least one.
        metrics: The names of metrics. Default: losses, evaluation results and learning rates.

    Returns:
        A figure of plotly, with the metrics below one another. A notebook that shows it grows by
        about 5 MB, since it has the script that draws the figure, so that exports to HTML show it
        without a network.

    Raises:
        ImportError: plotly is not installed.
        TypeError: `runs` or `metrics` is something else.
        ValueError: `runs` is empty, or no run has a metric of that name.

    Example:
        >>> from composable.report import RecordedRun, plot_runs
        >>> runs = [RecordedRun(folder) for folder in ("runs/a", "runs/b")]  # doctest: +SKIP
        >>> plot_runs(runs, "loss/train").show()  # doctest: +SKIP
    """
    runs = _checked(runs)
    labels = folder_names([run.folder for run in runs])
    return draw_curves([run.curves for run in runs], labels, metrics)


def _checked(runs: Any) -> list[RecordedRun]:
    listed: list[Any] = list(runs) if isinstance(runs, Sequence) else [None]
    if not listed:
        raise ValueError("runs is empty: pass at least one run.")
    if not all(isinstance(run, RecordedRun) for run in listed):
        raise TypeError(f"runs={runs!r} must be a list of RecordedRun.")
    return listed
