"""The plot of a comparison: the speed-up by result, and the results by cost."""

import textwrap
from collections.abc import Sequence
from io import BytesIO
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from composable.comparison.analysis.findings import Analysis, ArmAnalysis, Verdict
from composable.comparison.output.tables import NOTHING, headline, verdict_name
from composable.comparison.records import Study
from composable.core._printable import printable
from composable.plan.plotting import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["THEME", "draw_plot", "render_figure", "spread"]

_INK, _FAINT, _GRID, _GREY = "#1f2933", "#5f6b7a", "#e3e7ec", "#8a94a0"
THEME = {_INK: "ink", _FAINT: "faint", _GRID: "line", "#ffffff": "card"}
"""The colors of the plot that follow the theme of a page."""
# Of Okabe and Ito, which people with any color vision distinguish.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")

# Inches; a figure of 7 inches has 700 pixels in a README.
_WIDTH, _PANEL, _BETWEEN, _LEFT, _RIGHT, _LINE = 7.0, 2.4, 0.62, 0.72, 2.05, 0.15
_SIZE, _SMALL, _TITLE = 8.5, 8, 10.5  # points
_NAME = 26  # letters in a line of a label


class _Panel(NamedTuple):
    """An arm in one of the panels, by ascending x."""

    arm: ArmAnalysis
    color: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def draw_plot(study: Study, analysis: Analysis, *, transparent: bool = False) -> "Figure":
    """Draw the speed-up by result, and the mean final results by cost.

    Of many arms, the five with the smallest p values are drawn, and the baseline.

    Args:
        study: The study.
        analysis: Its analysis.
        transparent: Omit the white background.

    Returns:
        A matplotlib figure outside of pyplot.

    Raises:
        ImportError: matplotlib is not installed.
    """
    colors = _colors(analysis)
    speedups = [_speedup(arm, colors[arm.arm]) for arm in analysis.arms if _is_drawn(arm, colors)]
    results = [
        _result(arm, color) for arm in analysis.arms if (color := colors.get(arm.arm)) is not None
    ]
    title = textwrap.wrap(printable(headline(study, analysis)), 76)
    caption = textwrap.wrap(printable(_caption(study, analysis, colors)), 112)
    top, bottom = 0.22 + 0.19 * len(title), 0.62 + _LINE * len(caption)
    panels = [one for one in (speedups, [one for one in results if one.x]) if one]
    heights = [max(_PANEL, sum(map(_height, one)) + 0.1) for one in panels] or [_PANEL]
    total = top + bottom + sum(heights) + _BETWEEN * (len(heights) - 1)
    figure = _new_figure(total, transparent)
    y = total - top
    for panel, height in zip(panels, heights, strict=False):
        y -= height
        axes = figure.add_axes(
            (_LEFT / _WIDTH, y / total, (_WIDTH - _LEFT - _RIGHT) / _WIDTH, height / total)
        )
        (_draw_speedups if panel is speedups else _draw_results)(axes, panel, study, analysis)
        _label(axes, panel, height, with_verdict=panel is speedups or len(panels) == 1)
        y -= _BETWEEN
    write: dict[str, Any] = {"x": 0.12 / _WIDTH, "linespacing": 1.2}
    lines = "\n".join(title)
    figure.text(
        y=1 - 0.1 / total, s=lines, va="top", size=_TITLE, weight="bold", color=_INK, **write
    )
    lines = "\n".join(caption)
    figure.text(y=0.08 / total, s=lines, va="bottom", size=_SMALL, color=_FAINT, **write)
    return figure


def render_figure(figure: "Figure", suffix: str) -> bytes:
    """Return a figure as the content of a file.

    Args:
        figure: The figure.
        suffix: The suffix of the file, such as ".svg".

    Raises:
        ValueError: matplotlib does not support the suffix.
    """
    supported = figure.canvas.get_supported_filetypes()
    kind = suffix.lstrip(".").lower()
    if kind not in supported:
        raise ValueError(f"path must end with one of {sorted(supported)}, not {suffix!r}.")
    buffer = BytesIO()
    save_figure(figure, buffer, kind)
    return buffer.getvalue()


def _new_figure(height: float, transparent: bool) -> "Figure":
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "The plot of a comparison needs matplotlib: pip install composable[compare]. It is an "
            "extra, which the library does not install by default."
        ) from error
    return Figure(figsize=(_WIDTH, height), facecolor="none" if transparent else "white")


# --- drawn arms ---


def _colors(analysis: Analysis) -> dict[str, str]:
    """Return the arms to draw: dark for the baseline, grey for the A/A arm."""
    order = sorted(
        (arm for arm in analysis.arms if arm.role == "arm"),
        key=lambda arm: inf if arm.p is None else arm.p,
    )
    kept = [arm.arm for arm in order[: len(_COLORS)]]
    colors = dict(zip([arm.arm for arm in analysis.arms if arm.arm in kept], _COLORS, strict=False))
    fixed = {"baseline": _INK, "repeated": _GREY}
    return {**{arm.arm: fixed[arm.role] for arm in analysis.arms if arm.role != "arm"}, **colors}


def _is_drawn(arm: ArmAnalysis, colors: dict[str, str]) -> bool:
    return arm.arm in colors and any(point.speedup.low is not None for point in arm.curve)


def _speedup(arm: ArmAnalysis, color: str) -> _Panel:
    """Return the speed-up by result; bounds that are too far away are not drawn."""
    rows = sorted(
        (point.result, one.value or 0.0, one.low or 0.0, one.high or 0.0)
        for point in arm.curve
        for one in [point.speedup]
    )
    return _Panel(arm, color, *zip(*rows, strict=True))


def _result(arm: ArmAnalysis, color: str) -> _Panel:
    rows = sorted(
        (
            one.seconds,
            one.mean,
            one.mean if one.low is None else one.low,
            one.mean if one.high is None else one.high,
        )
        for one in arm.qualities
        if one.mean is not None and one.seconds > 0
    )
    return _Panel(arm, color, *(zip(*rows, strict=True) if rows else [()] * 4))


def _caption(study: Study, analysis: Analysis, colors: dict[str, str]) -> str:
    clock = "CPU seconds" if study.protocol.clock == "cpu" else "seconds"
    text = (
        f"Speed-up: the {clock} of {study.protocol.baseline} to a result divided by those of the "
        f"arm. Bands and bars: 95 % intervals, {len(study.protocol.seeds)} seeds. Points: mean "
        "final results of the schedules."
    )
    if len(colors) < len(analysis.arms):
        text += f" Shown: {len(colors)} of {len(analysis.arms)} arms, by their p values."
    return text


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
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _draw_speedups(axes: "Axes", panel: Sequence[_Panel], study: Study, analysis: Analysis) -> None:
    better = "right" if analysis.mode == "max" else "left"
    _frame(axes, f"{analysis.metric}, better to the {better}", "speed-up")
    axes.set_yscale("log")
    for one in panel:
        if len(one.x) == 1:
            error = [[one.y[0] - one.low[0]], [one.high[0] - one.y[0]]]
            axes.errorbar(one.x, one.y, error, fmt="o", markersize=4.5, color=one.color)
        else:
            shown = one.arm.verdict in (Verdict.PAYS, Verdict.COSTS)
            alpha, width = (0.16, 2.0) if shown else (0.05, 1.2)
            axes.fill_between(one.x, one.low, one.high, color=one.color, alpha=alpha, linewidth=0)
            axes.plot(one.x, one.y, linewidth=width, color=one.color)
    values = [value for one in panel for value in one.y] + [1.0]
    low, high = max(min(values) / 1.6, 1 / 64), min(max(values) * 1.6, 64.0)
    axes.set_ylim(low, high)
    _logarithmic(axes.yaxis)
    axes.axhline(1.0, color=_INK, linewidth=1.2)
    axes.annotate(
        study.protocol.baseline[:40],
        (0.01, 1.0),
        xycoords=axes.get_yaxis_transform(),
        xytext=(0, 3),
        textcoords="offset points",
        size=_SMALL,
        color=_FAINT,
    )


def _draw_results(axes: "Axes", panel: Sequence[_Panel], study: Study, analysis: Analysis) -> None:
    clock = "CPU seconds" if study.protocol.clock == "cpu" else "seconds"
    _frame(axes, f"{clock} of training", analysis.metric)
    axes.set_xscale("log")
    for one in panel:
        axes.vlines(one.x, one.low, one.high, color=one.color, linewidth=1.0, alpha=0.6)
        axes.plot(one.x, one.y, linewidth=1.6, marker="o", markersize=4, color=one.color)
    means = [value for one in panel for value in one.y]
    margin = 0.08 * (max(means) - min(means)) or 0.1 * abs(means[0]) or 1.0
    axes.set_ylim(min(means) - margin, max(means) + margin)
    _logarithmic(axes.xaxis)
    if analysis.target is not None:
        axes.axhline(analysis.target, color=_FAINT, linewidth=1, linestyle=(0, (4, 3)))


# --- labels ---


def _lines(one: _Panel) -> list[str]:
    lines = textwrap.wrap(printable(one.arm.arm), _NAME) or [""]
    if len(lines) > 2:
        lines = [lines[0], textwrap.shorten(" ".join(lines[1:]), _NAME, placeholder=" …")]
    return lines


def _height(one: _Panel) -> float:
    return _LINE * (len(_lines(one)) + 1) + 0.06


def _label(axes: "Axes", panel: Sequence[_Panel], height: float, *, with_verdict: bool) -> None:
    """Write the names beside the axes, at the height of the ends of the curves."""
    last = -1 if axes.get_xlabel().endswith("training") or not axes.xaxis_inverted() else 0
    ends = [axes.transData.transform((one.x[last], one.y[last]))[1] for one in panel]
    low, high = (axes.transAxes.transform((0, at))[1] for at in (0, 1))
    wanted = [height * min(max((end - low) / (high - low), 0.0), 1.0) for end in ends]
    centers = spread(wanted, [_height(one) for one in panel], height)
    for one, center in zip(panel, centers, strict=True):
        verdict = verdict_name(one.arm) if with_verdict else NOTHING
        ratio = one.arm.speedup.value if with_verdict and one.arm.speedup else None
        detail = [f"{ratio:.2f}x" if ratio else NOTHING, verdict]
        shown = ", ".join(part for part in detail if part != NOTHING)
        axes.annotate(
            "\n".join([*_lines(one), *([shown] if shown else [])]),
            (1.035, center / height),
            size=_SIZE,
            color=one.color,
            xycoords="axes fraction",
            va="center",
            linespacing=1.15,
        )


def spread(wanted: Sequence[float], heights: Sequence[float], room: float) -> list[float]:
    """Return centers near the wanted ones that don't overlap, from 0 to `room`.

    Args:
        wanted: The wanted center of each label.
        heights: The height of each label; together at most `room`.
        room: The height of the axes.

    Example:
        >>> from composable.comparison.output.plot import spread
        >>> spread([1.0, 1.0, 3.0], [0.5, 0.5, 0.5], 4.0)
        [1.0, 0.5, 3.0]
    """
    order = sorted(range(len(wanted)), key=lambda i: -wanted[i])
    centers = [0.0] * len(wanted)
    ceiling = room
    for i in order:
        centers[i] = min(wanted[i], ceiling - heights[i] / 2)
        ceiling = centers[i] - heights[i] / 2
    floor = 0.0
    for i in reversed(order):
        centers[i] = max(centers[i], floor + heights[i] / 2)
        floor = centers[i] + heights[i] / 2
    return centers
