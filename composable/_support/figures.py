"""Figures of matplotlib as files."""

from io import BytesIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
