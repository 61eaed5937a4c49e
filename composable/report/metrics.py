"""Which metrics are shown, in which order, and the colors of runs."""

from collections.abc import Iterable, Mapping
from typing import Any

from composable.report.curves import Curve
from composable.report.lines import in_order

# Told apart by most color-blind readers, on white and on black.
COLORS = (
    *("#4269d0", "#e8890c", "#1f9e77", "#d6456c", "#8a63d2", "#0fa3b1", "#9c6b4e", "#7a8b99"),
    *("#b5a300", "#c45ab3"),
)

_FIRST = ("loss", "metrics", "lr", "throughput")


def color_of(index: int) -> str:
    """Return the color of a group of runs."""
    return COLORS[index % len(COLORS)]


def section_of(name: str) -> str:
    """Return the heading under which a metric is shown; "" for the first metrics."""
    return "" if name.split("/")[0] in _FIRST else "Other metrics"


def shown_metrics(runs: Iterable[Mapping[str, Curve]]) -> list[str]:
    """Return the names of the metrics that have a chart, in the order of the page."""
    names = dict.fromkeys(name for run in runs for name, curve in run.items() if len(curve))

    def position(name: str) -> tuple[Any, ...]:
        prefix = name.split("/")[0]
        return section_of(name), _FIRST.index(prefix) if prefix in _FIRST else 0, in_order(name)

    return sorted((n for n in names if not n.startswith("time_split/")), key=position)
