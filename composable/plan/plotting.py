"""The picture of a timeline, drawn with matplotlib: the only module that may import it."""

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from composable._support.extras import needs
from composable.core.algorithm import Stage
from composable.plan.spans import Row, Span

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "new_axes", "new_figure", "render_figure"]

_WIDTH, _ROW_HEIGHT, _BOTTOM, _TOP = 9.5, 0.46, 0.66, 0.4  # inches
_BAR = 0.58  # of the height of a row
_GAP = 0.008  # between a bar and its label, of the width of the axes
_MAX_NAME = 22
_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}  # behind text on hatching
_INK, _FAINT, _GRID = "#1f2933", "#5f6b7a", "#e3e7ec"

_COLORS = {  # dark enough for white text
    Stage.SELECT: "#1b6ca8",
    Stage.RESIZE: "#0b7285",
    Stage.AUGMENT: "#2b7a3d",
    Stage.MIX: "#8a5a00",
    Stage.TARGETS: "#b3421b",
    Stage.SURGERY: "#5d4a8c",
    Stage.LAYOUT: "#7a4595",
    Stage.PRECISION: "#a03070",
    Stage.GRADIENTS: "#a31f34",
    Stage.AVERAGE: "#34568b",
    Stage.OTHER: "#555f6b",
}


# --- figures ---


def new_axes(rows: int) -> "Axes":
    """Create axes in a new pyplot figure, which `plt.show()` shows.

    Raises:
        ImportError: matplotlib is not installed.
    """
    _check_installed()
    from matplotlib import pyplot

    return _arrange(pyplot.figure(figsize=_size(rows)))


def new_figure(rows: int) -> "Figure":
    """Create a figure with axes outside of pyplot, to save it.

    Raises:
        ImportError: matplotlib is not installed.
    """
    _check_installed()
    from matplotlib.figure import Figure

    figure = Figure(figsize=_size(rows))
    _arrange(figure)
    return figure


def render_figure(figure: "Figure", suffix: str) -> bytes:
    """Return a figure as the content of a file with a suffix, such as ".svg".

    It is reproducible: an SVG file has no date and no random identifiers.
    """
    import matplotlib

    buffer, suffix = BytesIO(), suffix.removeprefix(".").lower()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "composable"}):
        metadata = {"Date": None} if suffix == "svg" else None
        figure.savefig(buffer, format=suffix or None, metadata=metadata, dpi=150)
    return buffer.getvalue()


def _check_installed() -> None:
    words = "Without it, print(timeline) shows the same in words."
    with needs("Timeline.plot", "plot", words):
        import matplotlib  # noqa: F401


def _size(rows: int) -> tuple[float, float]:
    return _WIDTH, _ROW_HEIGHT * max(rows, 1) + _BOTTOM + _TOP


def _arrange(figure: "Figure") -> "Axes":
    height = figure.get_figheight()
    return figure.add_axes((0.2, _BOTTOM / height, 0.765, 1 - (_BOTTOM + _TOP) / height))


# --- drawing ---


def draw(
    axes: "Axes",
    rows: Sequence[Row],
    describe: Callable[[Span], str],
    ticks: Sequence[tuple[float, str]],
    title: str,
) -> None:
    """Draw the rows of a timeline on axes.

    Args:
        axes: The matplotlib axes.
        rows: The algorithms, from top to bottom.
        describe: Describes a span in words.
        ticks: Fractions of the run, with their labels.
        title: The duration of the run, in words.
    """
    _draw_frame(axes, rows, ticks, title)
    for y, row in enumerate(rows):
        name = row.name if len(row.name) <= _MAX_NAME else f"{row.name[: _MAX_NAME - 1]}…"
        _draw_margin_text(axes, y - 0.17, name, color=_INK, size=9, weight="bold")
        _draw_margin_text(axes, y + 0.23, row.stage.name.lower(), color=_COLORS[row.stage], size=8)
        for span in row.spans:
            _draw_span(axes, y, row, span, describe(span))
    if not rows:
        axes.text(0.5, 0, "no algorithms", ha="center", va="center", color=_FAINT)


def _draw_frame(
    axes: "Axes", rows: Sequence[Row], ticks: Sequence[tuple[float, str]], title: str
) -> None:
    axes.set_xlim(0, 1)
    axes.set_ylim(max(len(rows), 1) - 0.5, -0.5)
    axes.set_yticks([])
    axes.set_xticks([at for at, _ in ticks], [label for _, label in ticks], color=_FAINT, size=8)
    axes.tick_params(length=0, pad=6)
    axes.grid(axis="x", color=_GRID)
    axes.set_axisbelow(True)
    axes.spines[:].set_color(_GRID)
    axes.spines[["left", "right"]].set_visible(False)
    axes.set_title(f"When each algorithm is active over {title}", loc="left", size=10, color=_INK)
    if any(span.conditions and span.start < span.end for row in rows for span in row.spans):
        note = "hatched: known only at run time"
        axes.set_title(note, loc="right", size=8, color=_FAINT)


def _draw_margin_text(axes: "Axes", y: float, text: str, **style: Any) -> None:
    transform = axes.get_yaxis_transform()
    axes.text(-0.015, y, text, transform=transform, ha="right", va="center", **style)


def _draw_span(axes: "Axes", y: int, row: Row, span: Span, words: str) -> None:
    color, left, right = _COLORS[row.stage], float(span.start), float(span.end)
    if left == right:
        axes.plot([left], [y], marker="D", markersize=8, color=color, clip_on=False)
        _draw_label(axes, y, left, right, words, inside=None)
        return
    style: dict[str, Any] = {"color": color}
    if span.conditions:
        style = {"facecolor": "white", "edgecolor": color, "hatch": "////", "alpha": 0.75}
    axes.barh(y, right - left, left=left, height=_BAR, linewidth=0.8, **style)
    inside: dict[str, Any] = {"color": "white"}
    if span.conditions:
        inside = {"color": _INK, "bbox": _WHITE}
    _draw_label(axes, y, left, right, words, inside=inside, optional=len(row.spans) > 1)


def _draw_label(
    axes: "Axes",
    y: int,
    left: float,
    right: float,
    words: str,
    *,
    inside: dict[str, Any] | None,
    optional: bool = False,
) -> None:
    """Write a label in its bar if it fits, else beside it; an optional one only in its bar."""
    width = _text_width(axes, words)
    if inside is not None and width + 2 * _GAP <= right - left:
        _write(axes, left + 1.5 * _GAP, y, words, **inside)
    elif optional:
        return
    elif right + 2 * _GAP + width <= 1:
        _write(axes, right + 2 * _GAP, y, words, color=_INK)
    elif left - 2 * _GAP - width >= 0:
        _write(axes, left - 2 * _GAP - width, y, words, color=_INK)
    else:
        room = int(len(words) * (1 - left - 3 * _GAP) / width) - 1
        _write(axes, left + 1.5 * _GAP, y, f"{words[:room]}…", **(inside or {"color": _INK}))


def _write(axes: "Axes", x: float, y: float, words: str, **style: Any) -> Any:
    return axes.text(x, y, words, ha="left", va="center_baseline", size=8, **style)


def _text_width(axes: "Axes", words: str) -> float:
    """Measure a label, in fractions of the width of the axes."""
    text = _write(axes, 0, 0, words)
    width = text.get_window_extent().width / axes.get_window_extent().width
    text.remove()
    return float(width)
