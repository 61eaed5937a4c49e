"""The plot of a comparison: the speed-up by result, and the results by cost or amount of data."""

import re
import textwrap
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from composable._support.figures import render_figure
from composable._support.printable import printable
from composable.comparison.records import Study
from composable.comparison.table import NOTHING, headline, verdict_name
from composable.comparison.verdict import (
    Analysis,
    ArmAnalysis,
    Verdict,
    axis_of,
    show_number,
    show_ratio,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_INK, _FAINT, _GRID = "#1f2933", "#5f6b7a", "#e3e7ec"
_THEME = {_INK: "ink", _FAINT: "faint", _GRID: "line", "#ffffff": "card"}
"""The colors of the plot that follow the theme of a page."""
# Of Okabe and Ito, which people with any color vision distinguish.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")

_NAME = 28  # letters of a label
_TITLE, _SIZE, _SMALL = 10.5, 8.5, 8  # points


class _Line(NamedTuple):
    """An arm in one of the panels: points with their intervals, by ascending x."""

    arm: ArmAnalysis
    color: str
    points: Sequence[tuple[float, float, float, float]]

    @property
    def columns(self) -> tuple[Any, ...]:
        return tuple(zip(*self.points, strict=True))


def draw_plot(study: Study, analysis: Analysis) -> Figure:
    """Draw the speed-up by result, and the mean final results by cost or amount of data.

    Of many arms, the five with the smallest p values are drawn, and the baseline.
    """
    drawn = _drawn(analysis)
    panels: list[tuple[Callable[..., None], list[_Line]]] = []
    for draw, points_of in ((_draw_speedups, _speedups), (_draw_results, _results)):
        lines = [_Line(arm, color, points_of(arm)) for arm, color in drawn]
        if kept := [line for line in lines if line.points]:
            panels.append((draw, kept))
    # A figure of 7 inches has 700 pixels in a README.
    figure = Figure(figsize=(7.0, 1.0 + 3.1 * len(panels)), layout="constrained")
    place: dict[str, Any] = {"x": 0.01, "ha": "left"}
    title = textwrap.fill(printable(headline(study, analysis)), 76)
    figure.suptitle(title, size=_TITLE, weight="bold", color=_INK, **place)
    caption = textwrap.fill(printable(_caption(study, analysis, len(drawn))), 112)
    figure.supxlabel(caption, size=_SMALL, color=_FAINT, **place)
    for i, (draw, lines) in enumerate(panels):
        axes = figure.add_subplot(len(panels), 1, i + 1)
        draw(axes, lines, study)
        _name_arms(axes, lines, with_verdict=i == 0)
    return figure


def render_inline(figure: Figure) -> str:
    """Return a figure as an SVG element, whose colors follow the theme of the page."""
    figure.set_facecolor("none")
    svg = render_figure(figure, ".svg").decode()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    for color, variable in _THEME.items():
        svg = svg.replace(color, f"var(--{variable})")
    return svg


# --- drawn arms ---


def _drawn(analysis: Analysis) -> list[tuple[ArmAnalysis, str]]:
    """Return the baseline, and the arms with the clearest effects, with their colors."""
    arms = [arm for arm in analysis.arms if arm.role == "arm"]
    clearest = sorted(arms, key=lambda arm: inf if arm.p is None else arm.p)[: len(_COLORS)]
    kept = [arm for arm in arms if arm in clearest]
    baseline = [(arm, _INK) for arm in analysis.arms if arm.role == "baseline"]
    return baseline + list(zip(kept, _COLORS, strict=False))


def _speedups(arm: ArmAnalysis) -> list[tuple[float, float, float, float]]:
    """Return the speed-up by result; at a target alone, the second panel shows more."""
    if len(arm.curve) < 2:
        return []
    return sorted(
        (point.result, point.speedup.value or 0.0, point.speedup.low, point.speedup.high or inf)
        for point in arm.curve
        if point.speedup.low is not None
    )


def _results(arm: ArmAnalysis) -> list[tuple[float, float, float, float]]:
    return sorted(
        (
            quality.extent,
            quality.mean,
            quality.mean if quality.low is None else quality.low,
            quality.mean if quality.high is None else quality.high,
        )
        for quality in arm.qualities
        if quality.mean is not None and quality.extent > 0
    )


def _caption(study: Study, analysis: Analysis, drawn: int) -> str:
    compared = sum(arm.role != "repeated" for arm in analysis.arms)
    shown = f" Shown: {drawn} of {compared} arms, by their p values." if drawn < compared else ""
    noise = analysis.noise_floor
    floor = f" {study.protocol.baseline} against itself: {noise}." if noise else ""
    return (
        f"{axis_of(study.protocol).ratio.capitalize()}: what {study.protocol.baseline} needs for a "
        "result, divided by what the arm needs. Bands and bars: 95 % intervals, "
        f"{len(study.protocol.seeds)} seeds. Points: mean results.{floor}{shown}"
    )


# --- panels ---


def _frame(axes: "Axes", xlabel: str, ylabel: str) -> None:
    axes.set_xlabel(printable(xlabel), color=_FAINT, size=_SIZE)
    axes.set_ylabel(printable(ylabel), color=_FAINT, size=_SIZE)
    axes.tick_params(which="both", length=0, pad=5, labelsize=_SMALL, labelcolor=_FAINT)
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.patch.set_visible(False)
    axes.spines[:].set_visible(False)


def _logarithmic(axis: Any) -> None:
    axis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _draw_speedups(axes: "Axes", lines: Sequence[_Line], study: Study) -> None:
    better = "right" if study.protocol.mode == "max" else "left"
    _frame(axes, f"{study.protocol.metric}, better to the {better}", axis_of(study.protocol).ratio)
    axes.set_yscale("log")
    for line in lines:
        x, y, low, high = line.columns
        shown = line.arm.verdict in (Verdict.PAYS, Verdict.COSTS)
        if shown:
            axes.fill_between(x, low, high, color=line.color, alpha=0.16, linewidth=0)
        axes.plot(x, y, linewidth=2.0 if shown else 1.2, color=line.color)
    values = [point[1] for line in lines for point in line.points] + [1.0]
    axes.set_ylim(max(min(values) / 1.6, 1 / 64), min(max(values) * 1.6, 64.0))
    _logarithmic(axes.yaxis)
    axes.axhline(1.0, color=_INK, linewidth=1.2)
    _name(axes, 1.02, printable(study.protocol.baseline[:40]))


def _draw_results(axes: "Axes", lines: Sequence[_Line], study: Study) -> None:
    clock = "CPU seconds" if study.protocol.clock == "cpu" else "seconds"
    label = axis_of(study.protocol).unit.format(clock=clock)
    _frame(axes, label, study.protocol.metric)
    axes.set_xscale("log")
    for line in lines:
        x, y, low, high = line.columns
        axes.vlines(x, low, high, color=line.color, linewidth=1.0, alpha=0.6)
        axes.plot(x, y, linewidth=1.6, marker="o", markersize=4, color=line.color)
    means = [point[1] for line in lines for point in line.points]
    margin = 0.08 * (max(means) - min(means)) or 0.1 * abs(means[0]) or 1.0
    low, high = min(means) - margin, max(means) + margin
    axes.set_ylim(low, high)
    _logarithmic(axes.xaxis)
    target = study.protocol.target
    if target is not None and low <= target <= high:
        mark_result(axes, target, f"target {show_number(target)}")


# --- labels ---


def mark_result(axes: "Axes", result: float, name: str) -> None:
    """Draw a line at a result."""
    axes.axhline(result, color=_FAINT, linewidth=1, linestyle=(0, (4, 3)))
    _name(axes, result, name)


def _name(axes: "Axes", y: float, name: str) -> None:
    """Write the name of a horizontal line above its start."""
    place = axes.get_yaxis_transform()
    axes.text(0.01, y, name, transform=place, va="bottom", size=_SMALL, color=_FAINT)


def _name_arms(axes: "Axes", lines: Sequence[_Line], *, with_verdict: bool) -> None:
    """Write the names beside the axes, in the order of the ends of the curves."""
    told = sorted(lines, key=lambda one: -one.points[-1][1])
    axes.legend(
        [Line2D([], [], color=one.color) for one in told],
        [_label(one.arm, with_verdict=with_verdict) for one in told],
        **{"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "frameon": False},
        **{"labelcolor": "linecolor", "handlelength": 1.2, "fontsize": _SIZE},
    )


def _label(arm: ArmAnalysis, *, with_verdict: bool) -> str:
    name = textwrap.shorten(printable(arm.arm), _NAME, placeholder=" …")
    if not with_verdict or arm.role != "arm":
        return name
    facts = show_ratio(arm.speedup.value if arm.speedup else None), verdict_name(arm)
    return "\n".join([name, ", ".join(fact for fact in facts if fact != NOTHING)])
