"""The page of a comparison: one HTML file without scripts, which needs no network."""

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from composable._version import __version__
from composable.comparison.analysis.findings import Analysis, Verdict
from composable.comparison.output.plot import draw_plot, render_figure
from composable.comparison.output.plot_labels import FAINT, GRID, INK
from composable.comparison.output.summaries import failures, final_result
from composable.comparison.output.table import (
    COST_HEADER,
    HEADER,
    arm_row,
    cost_row,
    count_trials,
    explain_columns,
    explain_costs,
)
from composable.comparison.output.wording import (
    NOTHING,
    describe_target,
    format_number,
    format_seconds,
    format_settings,
    headline,
    noise_floor,
    notes,
    verdict_sentences,
)
from composable.comparison.records import Study, TrialResult
from composable.report.html import HTML, element, join, table

__all__ = ["MAX_BYTES", "render_page"]

MAX_BYTES = 6_000_000
_MOST_TRIALS = 2000
# The page needs no network and no scripts, and a browser enforces it.
_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'"
)
_STYLE = (
    ".figure { overflow-x: auto; } .figure svg { width: 100%; height: auto; min-width: 34rem; "
    "max-width: 60rem; color: var(--ink); display: block; }"
)
# The colors of the plot that follow the theme of the page.
_THEME = {INK: "ink", FAINT: "faint", GRID: "line", "#ffffff": "card"}
_CLASSES = {Verdict.PAYS: "good", Verdict.COSTS: "bad"}


def render_page(study: Study, analysis: Analysis) -> str:
    """Return the page as text, at most 6 MB.

    Args:
        study: The study.
        analysis: Its analysis.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: The page would have more than 6 MB.
    """
    sections = {
        "Verdicts": _verdicts(study, analysis),
        "Plot": _plot(study, analysis),
        "Tuning": _tuning(study),
        "Costs": _costs(study, analysis),
        "Failures": _failures(study),
        "Protocol": _protocol(study, analysis),
        "Versions": _facts(study.protocol.versions.items()),
    }
    shown = {name: content for name, content in sections.items() if content}
    title = headline(study, analysis)
    links = [element("a", name, href=f"#{name.lower()}") for name in shown]
    body = element(
        "body",
        element("header", element("div", element("h1", title)), element("nav", *links)),
        element(
            "main",
            *(
                element("section", element("h2", name), content, id=name.lower())
                for name, content in shown.items()
            ),
        ),
    )
    page = f"<!DOCTYPE html>\n{element('html', _head(title), body, lang='en')}\n"
    if len(page.encode()) > MAX_BYTES:
        raise ValueError(
            f"the page would have {len(page.encode()) / 1e6:.1f} MB, more than "
            f"{MAX_BYTES / 1e6:.0f} MB: compare fewer arms at once."
        )
    return page


def _head(title: str) -> HTML:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="generator", content=f"composable {__version__}"),
        element("title", f"{title} · composable"),
        element("style", HTML(_css())),
    )


def _css() -> str:
    shared = files("composable.report").joinpath("report.css").read_text(encoding="utf-8")
    return f"{shared}\n{_STYLE}"


def _verdicts(study: Study, analysis: Analysis) -> HTML:
    rows = []
    for arm in analysis.arms:
        name, *cells, verdict = arm_row(arm)
        status = f"status {_CLASSES.get(arm.verdict, '')}".strip() if arm.verdict else None
        rows.append(
            element(
                "tr",
                element("td", name),
                element("td", format_settings(arm.settings)),
                *(element("td", cell, class_="number") for cell in cells),
                element("td", verdict, class_=status),
            )
        )
    sentences = [element("li", f"{sentence}.") for sentence in verdict_sentences(analysis)]
    return join(
        table([HEADER[0], "settings", *HEADER[1:]], rows),
        element("p", explain_columns(study, analysis), class_="note"),
        element("ul", *sentences, element("li", noise_floor(analysis))),
        _list(notes(analysis)),
    )


def _list(lines: Sequence[str]) -> HTML:
    return (
        element("ul", *(element("li", line) for line in lines), class_="note") if lines else HTML()
    )


def _plot(study: Study, analysis: Analysis) -> HTML:
    """Return the plot as SVG in the light or dark colors of the page."""
    raw = render_figure(draw_plot(study, analysis, transparent=True), ".svg").decode()
    svg = raw[raw.index("<svg") :]
    for color, variable in _THEME.items():
        svg = svg.replace(color, f"var(--{variable})")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return element("div", HTML(svg), class_="figure", role="img", aria_label="time to quality")


def _tuning(study: Study) -> HTML | None:
    protocol = study.protocol
    tuning = [result for result in study.results if result.trial.purpose == "tuning"]
    if not tuning:
        return None
    rows = [
        _row(
            *_trial_cells(result),
            format_number(final_result(result, protocol.tuning_metric)),
            result.outcome,
            "chosen" if _is_chosen(study, result) else "",
        )
        for result in tuning[:_MOST_TRIALS]
    ]
    grids = [
        f"{arm}: "
        + "; ".join(f"{name} of {', '.join(map(repr, values))}" for name, values in grid.items())
        for arm, grid in protocol.grids.items()
        if grid
    ]
    header = ["arm", "settings", "schedule", "seed", protocol.tuning_metric, "outcome", ""]
    return join(table(header, rows), _cut(tuning), _list(grids))


def _trial_cells(result: TrialResult) -> tuple[str, ...]:
    trial = result.trial
    return trial.arm, format_settings(trial.settings), trial.duration, str(trial.seed)


def _is_chosen(study: Study, result: TrialResult) -> bool:
    chosen = study.protocol.chosen.get(result.trial.arm, {})
    return repr(sorted(result.trial.settings.items())) == repr(sorted(chosen.items()))


def _cut(results: Sequence[TrialResult]) -> HTML:
    more = len(results) - _MOST_TRIALS
    text = f"{more} more trials are in study.json."
    return element("p", text, class_="note") if more > 0 else HTML()


def _costs(study: Study, analysis: Analysis) -> HTML:
    rows = [_row(*cost_row(study, arm)) for arm in analysis.arms]
    return join(table(list(COST_HEADER), rows), element("p", explain_costs(study), class_="note"))


def _failures(study: Study) -> HTML | None:
    failed = failures(study)
    if not failed:
        return None
    rows = [
        _row(
            *_trial_cells(result),
            result.outcome,
            str(result.batches),
            element("span", (result.error or NOTHING)[:2000], class_="error"),
        )
        for result in failed[:_MOST_TRIALS]
    ]
    header: list[Any] = ["arm", "settings", "schedule", "seed", "outcome", "batches", "error"]
    return join(table(header, rows), _cut(failed))


def _protocol(study: Study, analysis: Analysis) -> HTML:
    protocol = study.protocol
    total = sum(
        result.seconds.training + result.seconds.evaluation + result.seconds.warmup
        for result in study.results
    )
    better = "higher" if protocol.mode == "max" else "lower"
    facts = {
        "arms": ", ".join(protocol.arms),
        "baseline": protocol.baseline,
        "A/A arm": protocol.repeated or NOTHING,
        "metric": f"{protocol.metric} ({better} is better)",
        "target": describe_target(analysis, protocol),
        "tuned on": protocol.tuning_metric,
        "schedules": ", ".join(protocol.durations),
        **{f"schedules of {arm}": ", ".join(own) for arm, own in protocol.own_durations.items()},
        "reporting seeds": ", ".join(map(str, protocol.seeds)),
        "tuning seeds": ", ".join(map(str, protocol.tuning_seeds)) or NOTHING,
        "trials": count_trials(study),
        "training in all": format_seconds(total),
        "clock": "CPU seconds of one thread" if protocol.clock == "cpu" else "wall clock",
        "command": protocol.command or NOTHING,
    }
    return _facts(facts.items())


def _facts(facts: Any) -> HTML:
    return table(["", ""], [_row(name, value) for name, value in facts])


def _row(*cells: Any) -> HTML:
    return element("tr", *(element("td", cell) for cell in cells))
