"""Curves of metrics, drawn by plotly."""

from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

from composable._support.extras import needs
from composable.report.curves import Curve, thin
from composable.report.lines import visible
from composable.report.metrics import color_of, shown_metrics

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


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


def draw_curves(
    runs: Sequence[Mapping[str, Curve]],
    labels: Sequence[str],
    metrics: str | Sequence[str] | None = None,
) -> "Figure":
    """Draw metrics of runs: see `plot_runs`.

    Args:
        runs: The curves of each run, by the names of metrics.
        labels: The names of the runs.
        metrics: The names of metrics. Default: losses, evaluation results and learning rates.

    Raises:
        ImportError: plotly is not installed.
        TypeError: `metrics` is something else.
        ValueError: No run has a metric of that name.
    """
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
    for row, name in enumerate(names, start=1):
        curves = {i: run[name] for i, run in enumerate(runs) if name in run}
        drawn = thin(list(curves.values()), _MOST_POINTS)
        for index, one in zip(curves, drawn, strict=True):
            trace = _trace(one.points, _plain(labels[index]), index, row)
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


def _names(runs: Sequence[Mapping[str, Curve]], metrics: str | Sequence[str] | None) -> list[str]:
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
