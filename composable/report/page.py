"""Write the report of some runs: one HTML file, which needs no network."""

import base64
import gzip
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from composable._support.checks import as_path
from composable._support.extras import needs
from composable._support.paths import write_atomically
from composable._version import __version__
from composable.report import sections
from composable.report.chart_data import chart_data
from composable.report.comparison import RunComparison
from composable.report.lines import visible
from composable.report.metrics import color_of
from composable.report.recorded_run import RecordedRun, find_runs

MAX_BYTES = 6_000_000
_SECTIONS: Mapping[str, Callable[[RunComparison], Any]] = {
    "Overview": sections.overview,
    "Problems": sections.problems,
    "Differences": sections.differences,
    "Curves": sections.curves,
    "Time": sections.time_split,
    "Plan": sections.plan,
    "Checkpoints": sections.checkpoints,
    "Warnings": sections.warnings,
    "Configuration": sections.all_settings,
}
"""The data of each section, whose structure is in `page.html`; one without data is not shown."""
_WITH_HINT = ("Curves", "Time")  # which tell what to record, if nothing is


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
    with needs("a report", "report"):
        from jinja2 import Environment, StrictUndefined
    plotly = _compressed_plotly()  # before the work, since it may be missing
    comparison = RunComparison.of(runs)
    heading = f"Run {comparison.names[0]}" if len(runs) == 1 else f"{len(runs)} runs"
    built = {name: section(comparison) for name, section in _SECTIONS.items()}
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    source = re.sub(r"\n *", "", _asset("page.html"))  # spaces between elements would be seen
    page: str = environment.from_string(source).render(
        heading=title or heading,
        version=__version__,
        now=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        comparison=comparison,
        sections={name: shown for name, shown in built.items() if shown or name in _WITH_HINT},
        color_of=color_of,
        part_colors=sections.PART_COLORS,
        data=chart_data(comparison),
        css=_asset("report.css"),
        script=_asset("report.js"),
        plotly=plotly,
    )
    return page


def _asset(name: str) -> str:
    return files("composable.report").joinpath(name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _compressed_plotly() -> str:
    """Return plotly's script, compressed: 2 MB instead of 5.

    Raises:
        ImportError: plotly is not installed.
    """
    with needs("a report", "report"):
        from plotly.offline import get_plotlyjs
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode()
