"""How the time of training is split."""

import math
from collections.abc import Mapping

from composable.report.comparison import RunComparison
from composable.report.html import HTML, element, join
from composable.report.sections._common import (
    format_span,
    labelled,
    note_of,
)

__all__ = ["time_split"]


_PARTS = {  # the parts of TimeSplit, with their colors
    "data": "#b4690e",
    "forward": "#3a62c8",
    "backward": "#7d55c7",
    "optimizer": "#17805f",
    "evaluation": "#0b7f8b",
    "saving": "#c23860",
    "other": "#6b7683",
}


def time_split(comparison: RunComparison) -> HTML | None:
    """Show the share of each part of training, as bars."""
    rows = []
    for index, run, label in labelled(comparison):
        split = {n: s for n, s in run.time_split.items() if math.isfinite(s) and s > 0}
        if whole := sum(split.values()):
            parts = [(n, split[n]) for n in (*_PARTS, *split.keys() - _PARTS.keys()) if n in split]
            bars = [_bar(name, seconds, whole) for name, seconds in parts]
            total = element("span", _sum(split, whole, run.num_seconds), class_="total")
            rows.append(
                element(
                    "div",
                    element("div", label, total, class_="bar-name"),
                    element("div", *bars, class_="bar"),
                    data_run=index,
                )
            )
    if not rows:
        return None
    legend = element(
        "p",
        *(
            element("span", element("i", class_="dot", style=f"background:{color}"), name)
            for name, color in _PARTS.items()
        ),
        class_="legend",
    )
    note = "Times of the host: on a GPU, a part that waits for queued work includes its time."
    return join(legend, *rows, note_of(note))


def _sum(split: Mapping[str, float], whole: float, training: float | None) -> str:
    """Write the time as a sum that begins with the training time of the overview."""
    parts = {name: split[name] for name in ("evaluation", "saving") if name in split}
    rest = whole - (training or 0) - sum(parts.values())
    if training is None or rest < 0:
        return format_span(whole)
    summed = {"training": training, **parts, "other": rest}
    shown = " + ".join(f"{name} {format_span(seconds)}" for name, seconds in summed.items())
    return f"{format_span(whole)} = {shown}"


def _bar(name: str, seconds: float, whole: float) -> HTML:
    share = 100 * seconds / whole
    text = f"{name}: {format_span(seconds)}, {share:.3g} %"
    inside = f"{share:.0f} %" if share >= 6 else ""
    color = _PARTS.get(name, "#6b7683")
    style = f"width:{share:.3f}%;background:{color}"
    return element("span", inside, style=style, title=text)
