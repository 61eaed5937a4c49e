"""Write the report of some runs: one HTML file, which needs no network."""

import base64
import gzip
import json
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from composable._support.checks import as_path
from composable._support.paths import write_atomically
from composable._version import __version__
from composable.report.chart_data import chart_data
from composable.report.comparison import RunComparison
from composable.report.extras import needs
from composable.report.html import HTML, element
from composable.report.recorded_run import RecordedRun, find_runs
from composable.report.sections import SECTIONS

__all__ = ["MAX_BYTES", "render", "write_report"]

MAX_BYTES = 6_000_000

# Nothing is fetched: the browser refuses every address but data in the file itself.
_POLICY = (
    "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
_HINTS = {
    "Time": "No run recorded a time split: pass callbacks=[TimeSplit()] and "
    "loggers=[JSONLinesLogger(folder / 'metrics.jsonl')] to the Trainer.",
    "Curves": "No run recorded a metric.",
}


def write_report(
    runs: str | Path | RecordedRun | Sequence[str | Path | RecordedRun],
    path: str | Path = "report.html",
    *,
    title: str | None = None,
) -> Path:
    """Write a report of one or several runs: an HTML file that opens without a network.

    Curves are thinned to the pixels of a chart, with their extremes. Runs whose settings differ in
    the seed alone share a color and a band. An existing file is replaced.

    Args:
        runs: Run folders, folders of run folders, or runs.
        path: The file to write; its folder must exist.
        title: The title of the page. Default: the names of the runs.

    Returns:
        The path.

    Raises:
        ImportError: plotly is not installed.
        MissingCheckpointError: There is no recorded run at a path.
        ValueError: `runs` is empty, `path` doesn't end with ".html", or the report would have more
            than 6 MB.

    Example:
        >>> from composable.report import write_report
        >>> write_report(["runs/a", "runs/b"], "report.html")  # doctest: +SKIP
        PosixPath('report.html')
    """
    target = as_path("path", path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"path={str(target)!r} must end with '.html'.")
    if title is not None and not isinstance(title, str):
        raise TypeError(f"title={title!r} must be a string.")
    raw = render(_read(runs), title).encode()
    if len(raw) > MAX_BYTES:
        raise ValueError(
            f"the report would have {len(raw) / 1e6:.1f} MB, more than {MAX_BYTES / 1e6:.0f} MB: "
            "pass fewer runs."
        )
    return write_atomically(target, raw)


def _read(runs: Any) -> list[RecordedRun]:
    given: Any = [runs] if isinstance(runs, (str, Path, RecordedRun)) else runs
    if not isinstance(given, Sequence):
        raise TypeError(f"runs={runs!r} must be a run folder, or a list of these.")
    if not len(given):
        raise ValueError("runs is empty: pass at least one run folder.")
    if all(isinstance(one, RecordedRun) for one in given):
        return list(given)
    return find_runs(one.folder if isinstance(one, RecordedRun) else one for one in given)


def render(runs: Sequence[RecordedRun], title: str | None = None) -> str:
    """Return the page as text."""
    plotly = _compressed_plotly()  # first, since it may be missing
    comparison = RunComparison.of(runs)
    names = ", ".join(comparison.names)
    heading = title or (f"Run {names}" if len(runs) == 1 else f"{len(runs)} runs")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="generator", content=f"composable {__version__}"),
        element("title", heading if len(names) > 80 else f"{heading} · composable"),
        element("style", HTML(_asset("report.css"))),
    )
    built = {name: section(comparison) for name, section in SECTIONS.items()}
    shown = {
        name: element("p", _HINTS[name], class_="note") if body is None else body
        for name, body in built.items()
        if body is not None or name in _HINTS
    }
    sections = [
        element("section", element("h2", name), body, id=name.lower())
        for name, body in shown.items()
    ]
    scripts = [
        element("script", HTML(_json(chart_data(comparison))), type="application/json", id="data"),
        element("script", HTML(plotly), type="text/plain", id="plotly"),
        element("script", HTML(_asset("report.js"))),
    ]
    body = element(
        "body",
        _header(heading, list(shown)),
        element("main", *sections),
        *scripts,
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _header(heading: str, sections: Sequence[str]) -> HTML:
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    links = [element("a", name, href=f"#{name.lower()}") for name in sections]
    return element(
        "header",
        element("div", element("h1", heading), element("p", f"composable · {now}", class_="note")),
        element("nav", *links),
        element("div", id="controls"),
        element("p", id="fault", class_="problems", hidden=True),
    )


def _asset(name: str) -> str:
    return files("composable.report").joinpath(name).read_text(encoding="utf-8")


def _json(value: object) -> str:
    """Encode JSON that can't end the script element around it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@lru_cache(maxsize=1)
def _compressed_plotly() -> str:
    """Return plotly's script, compressed: 2 MB instead of 5.

    Raises:
        ImportError: plotly is not installed.
    """
    with needs("plotly", "a report"):
        from plotly.offline import get_plotlyjs
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode()
