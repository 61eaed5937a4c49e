"""Figures of recorded runs, by plotly."""

from collections.abc import Sequence
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

from composable._support.extras import needs
from composable.report.chart_data import color_of, shown_metrics
from composable.report.comparison import RunComparison
from composable.report.curves import thin
from composable.report.lines import visible
from composable.report.recorded_run import RecordedRun

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["plot_runs"]

_MOST_POINTS = 1000  # intervals of one curve
_HEIGHT = 260  # of one metric, in pixels
_DEFAULT = ("loss", "metrics", "lr")


@cache
def _figure_class() -> "type[Figure]":
    """Return a class of figures that are also shown in a notebook that was exported to HTML."""
    from plotly.graph_objects import Figure

    class NotebookFigure(Figure):  # type: ignore[misc]
        _ipython_display_ = None  # which shows a figure in a format that exports omit

        def _repr_mimebundle_(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            shown = super()._repr_mimebundle_(*args, **kwargs)
            return {**shown, "text/html": self.to_html(full_html=False)}

        def __reduce__(self) -> Any:  # pickle finds no class that a function has defined
            return Figure, (self.to_dict(),)

    return NotebookFigure


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
    names = _names(runs, metrics)
    with needs("plot", "report"):
        from plotly.subplots import make_subplots
    figure = make_subplots(
        figure=_figure_class()(),
        rows=len(names),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=min(0.06, 0.2 / len(names)),
    )
    comparison = RunComparison.of(runs)
    for row, name in enumerate(names, start=1):
        curves = {i: run.curves[name] for i, run in enumerate(runs) if name in run.curves}
        drawn = thin(list(curves.values()), _MOST_POINTS)
        for index, one in zip(curves, drawn, strict=True):
            trace = _trace(one.points, _plain(comparison.names[index]), index, row)
            figure.add_trace(trace, row=row, col=1)
        figure.update_yaxes(title_text=_plain(name), row=row, col=1)
    figure.update_xaxes(title_text="batches", row=len(names), col=1)
    figure.update_layout(
        height=_HEIGHT * len(names) + 80,
        margin={"l": 70, "r": 20, "t": 30, "b": 50},
        hovermode="x unified",
        showlegend=len(runs) > 1,
    )
    return figure


def _checked(runs: Any) -> list[RecordedRun]:
    listed: list[Any] = list(runs) if isinstance(runs, Sequence) else [None]
    if not listed:
        raise ValueError("runs is empty: pass at least one run.")
    if not all(isinstance(run, RecordedRun) for run in listed):
        raise TypeError(f"runs={runs!r} must be a list of RecordedRun.")
    return listed


def _names(runs: Sequence[RecordedRun], metrics: str | Sequence[str] | None) -> list[str]:
    known = shown_metrics(runs)
    if metrics is None:
        found = [name for name in known if name.split("/")[0] in _DEFAULT]
        if not found:
            raise ValueError("no run has recorded a loss; pass metrics= to plot others.")
        return found
    if not isinstance(metrics, Sequence):
        raise TypeError(f"metrics={metrics!r} must be the name of a metric, or a list of names.")
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    for name in names:
        if name not in known:
            raise ValueError(f"metrics={name!r} must be one of {known}.")
    if not names:
        raise ValueError("metrics=[] is empty; pass the name of a metric, such as 'loss/train'.")
    return names


def _trace(points: Sequence[tuple[int, float]], name: str, index: int, row: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines" if len(points) > 60 else "lines+markers",
        "x": [batch for batch, _ in points],
        "y": [value for _, value in points],
        "name": name,
        "legendgroup": str(index),
        "showlegend": row == 1,
        "line": {"color": color_of(index), "width": 1.5},
    }


def _plain(text: str) -> str:
    """Escape a name: plotly interprets some HTML."""
    return escape(visible(text), quote=False)
