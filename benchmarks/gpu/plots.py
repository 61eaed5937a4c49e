"""Plots of the ratios of a part, for the page of the results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["plot_ratios"]


def plot_ratios(path: Path, cases: Sequence[Mapping[str, Any]]) -> bool:
    """Plot the ratio of each case and its blocks, and return whether there is a plot.

    Without ratios or matplotlib there is none, and one of an earlier run is deleted.

    Args:
        path: The file.
        cases: The cases, of which those with `ratios`, one of each block of steps, are shown.
    """
    shown = [case for case in cases if case.get("ratios")]
    path.unlink(missing_ok=True)
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        return False
    if not shown:
        return False
    figure = Figure(figsize=(7, 1 + 0.3 * len(shown)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(1, color="0.6", linewidth=1)
    for row, case in enumerate(reversed(shown)):
        blocks = case["ratios"]
        axes.plot(blocks, [row] * len(blocks), ".", color="tab:blue", alpha=0.35)
        axes.plot(case["ratio"], row, "|", color="tab:blue", markersize=14)
    axes.set_yticks(range(len(shown)), [case["case"][:48] for case in reversed(shown)])
    axes.set_xlabel("time of a step, over that of the plain loop")
    with rc_context({"svg.fonttype": "none"}):  # texts that can be searched
        figure.savefig(path, metadata={"Date": None})
    return True
