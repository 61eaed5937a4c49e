"""The time-to-quality plot of a comparison, drawn with matplotlib."""

import textwrap
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from composable.comparison.analysis.findings import Analysis
from composable.comparison.output.plot_data import (
    PlottedArm,
    clearest,
    plotted_arms,
    quality_limits,
)
from composable.comparison.output.plot_labels import (
    FAINT,
    GRID,
    INK,
    LABEL_SIZE,
    LINE,
    SMALL,
    Label,
    caption_of,
    draw_labels,
)
from composable.comparison.output.wording import format_number, headline
from composable.comparison.records import Study
from composable.core._printable import printable
from composable.plan.plotting import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_plot", "render_figure"]

_GREY = "#8a94a0"
# Six colors of Okabe and Ito and two others, which people with any color vision distinguish.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#9467bd", "#7a6a00")
_STYLES = ("-", "--", ":", "-.")

# Inches.
_WIDTH, _HEIGHT = 7.0, 3.1
_LEFT, _RIGHT = 0.72, 2.05
_TITLE = 10.5  # points
_WIDE = 110  # letters in a line of the caption


def draw_plot(study: Study, analysis: Analysis, *, transparent: bool = False) -> "Figure":
    """Draw the metric against the seconds of training.

    Of more than ten arms, those with the smallest p values are drawn.

    Args:
        study: The study.
        analysis: Its analysis.
        transparent: Omit the white background.

    Returns:
        A matplotlib figure outside of pyplot.

    Raises:
        ImportError: matplotlib is not installed.
    """
    every = plotted_arms(study, analysis)
    arms = clearest(every)
    labels = [Label.of(arm) for arm in arms]
    title = textwrap.wrap(printable(headline(study, analysis)), 74)
    unit, scale = _unit(arms)
    caption = textwrap.wrap(printable(caption_of(study, analysis, arms, every)), _WIDE)
    height = max(_HEIGHT, sum(label.height for label in labels) + 0.1)
    top, bottom = 0.22 + 0.19 * len(title), 0.62 + LINE * len(caption)
    figure = _new_figure(_WIDTH, top + height + bottom)
    total = top + height + bottom
    if transparent:
        figure.patch.set_visible(False)
    axes = figure.add_axes(
        (_LEFT / _WIDTH, bottom / total, (_WIDTH - _LEFT - _RIGHT) / _WIDTH, height / total)
    )
    _draw_frame(axes, study, analysis, arms, (unit, scale))
    styles = _arm_styles(arms)
    for arm, style in zip(arms, styles, strict=True):
        _draw_arm(axes, arm, style, scale)
    draw_labels(axes, arms, labels, scale, height, styles)
    _write(figure, title, 1 - 0.1 / total, va="top", size=_TITLE, weight="bold", color=INK)
    _write(figure, caption, 0.08 / total, va="bottom", size=SMALL, color=FAINT, linespacing=1.25)
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


def _new_figure(width: float, height: float) -> "Figure":
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "The plot of a comparison needs matplotlib: pip install composable[compare]. It is an "
            "extra, which the library does not install by default."
        ) from error
    return Figure(figsize=(width, height), facecolor="white")


def _write(figure: "Figure", lines: Sequence[str], y: float, **style: Any) -> None:
    """Write lines at the left edge of a figure."""
    figure.text(0.12 / _WIDTH, y, "\n".join(lines), **{"linespacing": 1.15, **style})


# --- axes ---


def _unit(arms: Sequence[PlottedArm]) -> tuple[str, float]:
    """Return the unit of the times, and its seconds."""
    longest = max((_last(arm) for arm in arms), default=0.0)
    if longest < 600:
        return "seconds", 1.0
    return ("minutes", 60.0) if longest < 36_000 else ("hours", 3600.0)


def _last(arm: PlottedArm) -> float:
    return max([arm.end[0], *(one.seconds for one in arm.finals)])


def _draw_frame(
    axes: "Axes",
    study: Study,
    analysis: Analysis,
    arms: Sequence[PlottedArm],
    unit: tuple[str, float],
) -> None:
    name, scale = unit
    clock = "CPU " if study.protocol.clock == "cpu" else ""
    axes.set_ylim(*quality_limits(arms, analysis, study.protocol.baseline))
    _set_times(axes, arms, scale)
    axes.set_xlabel(f"{clock}{name} of training", color=FAINT, size=LABEL_SIZE)
    axes.set_ylabel(printable(analysis.metric), color=FAINT, size=LABEL_SIZE)
    axes.tick_params(length=0, pad=5, labelsize=SMALL, labelcolor=FAINT)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.patch.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.spines[["bottom"]].set_visible(True)
    axes.spines[["bottom"]].set_color(_GREY)
    axes.axhline(analysis.target.value, color=FAINT, linewidth=1, linestyle=(0, (4, 3)), zorder=2)
    above = 3 if analysis.mode == "max" else -3
    axes.annotate(
        f"target {format_number(analysis.target.value)}",
        (0.01, analysis.target.value),
        xycoords=axes.get_yaxis_transform(),
        xytext=(0, above),
        textcoords="offset points",
        va="bottom" if above > 0 else "top",
        size=SMALL,
        color=FAINT,
    )


def _set_times(axes: "Axes", arms: Sequence[PlottedArm], scale: float) -> None:
    """Choose a logarithmic axis if the schedules span more than a factor of 10."""
    ends = [end / scale for arm in arms for end in (*(f.seconds for f in arm.finals), arm.end[0])]
    ends = [end for end in ends if end > 0] or [1.0]
    low, high = min(ends), max(ends)
    if high <= 10 * low:
        axes.set_xlim(0, 1.03 * high)
        return
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    axes.set_xlim(low / 2, 1.1 * high)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


# --- arms ---


def _arm_styles(arms: Sequence[PlottedArm]) -> list[dict[str, Any]]:
    """Return colors and lines: dark for the baseline, grey for the A/A arm."""
    styles, number = [], 0
    for arm in arms:
        if arm.found.role == "baseline":
            styles.append({"color": INK, "linestyle": "-"})
        elif arm.found.role == "repeated":
            styles.append({"color": _GREY, "linestyle": "-"})
        else:
            repetition, index = divmod(number, len(_COLORS))
            line = _STYLES[repetition % len(_STYLES)]
            styles.append({"color": _COLORS[index], "linestyle": line})
            number += 1
    return styles


def _draw_arm(axes: "Axes", arm: PlottedArm, style: dict[str, Any], scale: float) -> None:
    order = 3 if arm.found.role == "repeated" else 4
    seconds = [one / scale for one in arm.curve.seconds]
    alone = len(arm.found.qualities) < 2
    axes.fill_between(
        seconds,
        arm.curve.low,
        arm.curve.high,
        color=style["color"],
        alpha=0.12,
        linewidth=0,
        zorder=order,
    )
    width, alpha = (1.8, 1.0) if alone else (0.8, 0.55)
    axes.plot(seconds, arm.curve.mean, linewidth=width, alpha=alpha, zorder=order, **style)
    line = arm.interpolated()
    axes.plot(
        [at / scale for at, _ in line],
        [mean for _, mean in line],
        linewidth=1.8,
        zorder=order + 1,
        **style,
    )
    for one in arm.finals:
        bounds = [one.low, one.high]
        at = one.seconds / scale
        if None not in bounds:
            axes.plot([at, at], bounds, color=style["color"], linewidth=1.2, zorder=order + 2)
        axes.plot(
            [at],
            [one.mean],
            marker="o",
            markersize=4.5,
            color=style["color"],
            markeredgecolor="white",
            markeredgewidth=0.8,
            zorder=order + 2,
        )
