"""The labels beside the curves of a plot, and its caption."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from composable.comparison.analysis.findings import Analysis
from composable.comparison.output.plot_data import PlottedArm, quality_limits
from composable.comparison.output.wording import (
    NOTHING,
    clock_seconds,
    format_estimate,
    format_number,
    format_seconds,
    verdict_name,
)
from composable.comparison.records import Study
from composable.core._printable import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "FAINT",
    "GRID",
    "INK",
    "LABEL_SIZE",
    "LINE",
    "SMALL",
    "Label",
    "caption_of",
    "draw_labels",
    "spread",
]

INK, FAINT, GRID = "#1f2933", "#5f6b7a", "#e3e7ec"
LINE = 0.15  # inches
LABEL_SIZE, SMALL = 8.5, 8  # points: a figure of 7 inches has 700 pixels in a README
_NAME = 25  # letters in a line


@attrs.frozen
class Label:
    """The text beside a curve."""

    name: tuple[str, ...]
    detail: str

    @classmethod
    def of(cls, arm: PlottedArm) -> "Label":
        """Return the name of an arm, and its speed-up and verdict."""
        lines = textwrap.wrap(printable(arm.found.arm), _NAME) or [""]
        if len(lines) > 2:
            lines = [lines[0], textwrap.shorten(" ".join(lines[1:]), _NAME, placeholder=" …")]
        parts = [verdict_name(arm.found)]
        if arm.found.role == "baseline":
            parts += [format_seconds(arm.found.time.interpolated)]
        elif arm.found.time.ratio is not None:
            parts = [format_estimate(arm.found.time.ratio), *parts]
        if not arm.finals:
            parts += [f"{arm.runs[0]} of {arm.runs[1]} finished"]
        return cls(tuple(lines), ", ".join(part for part in parts if part != NOTHING))

    @property
    def height(self) -> float:
        """The height, in inches."""
        return LINE * (len(self.name) + 1) + 0.09


def draw_labels(
    axes: "Axes",
    arms: Sequence[PlottedArm],
    labels: Sequence[Label],
    scale: float,
    height: float,
    styles: Sequence[dict[str, Any]],
) -> None:
    """Write the labels beside the axes, with a line from each to its curve.

    Args:
        axes: The axes, with their limits.
        arms: The arms.
        labels: The label of each arm.
        scale: The seconds of a unit of the times.
        height: The height of the axes, in inches.
        styles: The color of each arm, and its line.
    """
    low, high = axes.get_ylim()
    wanted = [
        height * min(max((arm.label_point[1] - low) / (high - low), 0.0), 1.0) for arm in arms
    ]
    centers = spread(wanted, [label.height for label in labels], height)
    for arm, label, style, wish, center in zip(arms, labels, styles, wanted, centers, strict=True):
        point = arm.label_point[0] / scale, low + (high - low) * wish / height
        _draw_line(axes, point, center / height, style["color"])
        top, bottom = center + label.height / 2 - 0.04, center - label.height / 2 + 0.04
        name = {"size": LABEL_SIZE, "weight": "bold", "color": style["color"], "linespacing": 1.1}
        _write(axes, "\n".join(label.name), top / height, va="top", **name)
        _write(axes, label.detail, bottom / height, va="bottom", size=SMALL, color=INK)


def _draw_line(axes: "Axes", point: tuple[float, float], y: float, color: str) -> None:
    """Draw a dotted line from a point to a height beside the axes."""
    axes.annotate(
        "",
        xy=point,
        xytext=(1.025, y),
        textcoords="axes fraction",
        arrowprops={
            "arrowstyle": "-",
            "color": color,
            "linewidth": 0.7,
            "alpha": 0.7,
            "linestyle": (0, (1, 1.5)),
            "shrinkA": 0,
            "shrinkB": 3,
        },
        annotation_clip=False,
        zorder=3,
    )


def _write(axes: "Axes", text: str, y: float, **style: Any) -> None:
    """Write text beside the axes."""
    axes.annotate(text, (1.035, y), xycoords="axes fraction", **style)


def spread(wanted: Sequence[float], heights: Sequence[float], room: float) -> list[float]:
    """Return centers near the wanted ones that don't overlap, from 0 to `room`.

    Args:
        wanted: The wanted center of each label.
        heights: The height of each label; together at most `room`.
        room: The height of the axes.

    Example:
        >>> from composable.comparison.output.plot_labels import spread
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


def caption_of(
    study: Study, analysis: Analysis, arms: Sequence[PlottedArm], every: Sequence[PlottedArm]
) -> str:
    """Return a legend of the plot, and the arms that it does not show.

    Args:
        study: The study.
        analysis: Its analysis.
        arms: The arms that are drawn.
        every: All arms with a curve.
    """
    seeds = len(study.protocol.seeds)
    interval = ", with 95 % intervals" if seeds > 1 else ""
    mean = f"mean of {seeds} seeds, band from the lowest to the highest"
    runs = mean if seeds > 1 else "one seed"
    schedule = "a run on one schedule, the shortest that passes the target or else the longest"
    if any(len(study.protocol.durations_of(arm.found.arm)) > 1 for arm in arms):
        points = f"Points: mean final results of each schedule{interval}."
        parts = [f"{points} Thin curves: {schedule}; {runs}."]
    else:
        parts = [f"Curves: {runs}. Points: final results{interval}."]
    parts.append(
        f"Speed-up: the baseline's {clock_seconds(study.protocol)} to the target divided by the "
        f"arm's{interval}; {seeds} {'seeds' if seeds > 1 else 'seed'}."
    )
    if len(arms) < len(every):
        parts.append(
            f"Shown: {len(arms)} of {len(every)} arms, those with the smallest p values and the "
            "baseline."
        )
    missing = [arm.arm for arm in analysis.arms if arm not in [one.found for one in every]]
    if missing:
        parts.append(f"Without a finished run on this schedule: {', '.join(missing)}.")
    low, high = quality_limits(arms, analysis, study.protocol.baseline)
    outside = [
        f"{arm.found.arm} ({format_number(arm.label_point[1])})"
        for arm in arms
        if not low <= arm.label_point[1] <= high
    ]
    if outside:
        parts.append(f"Outside of the plotted range: {', '.join(outside)}.")
    return " ".join(parts)
