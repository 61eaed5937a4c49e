"""The sections of the page that need no script: tables, bars and images."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from composable.callbacks._results import known_mode
from composable.report.chart_data import color_of, section_of, shown_metrics
from composable.report.comparison import Comparison, first_difference
from composable.report.curves import Curve
from composable.report.html import HTML, element, join, table
from composable.report.images import Image
from composable.report.lines import as_batch, as_number, as_text
from composable.report.recorded_run import RecordedRun

__all__ = ["SECTIONS", "duration"]

Section = Callable[[Comparison], HTML | None]

_MOST_RESULTS = 5
_MOST_SETTINGS = 300
_MOST_CHECKPOINTS = 100
_MOST_IMAGES = 8  # of one name
_MOST_NAMES = 12
_MOST_BYTES = 1_000_000  # of all images
_EMPTY = "—"


# --- what every section uses ---


def _label(comparison: Comparison, run: int) -> HTML:
    group = next(i for i, runs in enumerate(comparison.groups) if run in runs)
    dot = element("i", class_="dot", style=f"background:{color_of(group)}")
    return join(dot, comparison.names[run])


def _rows(comparison: Comparison) -> list[tuple[int, RecordedRun, HTML]]:
    return [(i, run, _label(comparison, i)) for i, run in enumerate(comparison.runs)]


def _number(value: float | None, digits: int = 4) -> str:
    if value is None:
        return _EMPTY
    if math.isfinite(value) and (abs(value) >= 1e4 or value == int(value)) and abs(value) < 1e15:
        return f"{value:,.0f}".replace(",", "\u202f") if abs(value) >= 1e4 else str(int(value))
    return f"{value:.{digits}g}"


def duration(seconds: float | None) -> str:
    """Format seconds in two units at most.

    Example:
        >>> from composable.report.sections import duration
        >>> [duration(seconds) for seconds in (0.25, 75, 3 * 3600 + 59, None)]
        ['0.25 s', '1 min 15 s', '3 h 0 min', '—']
    """
    if seconds is None or not math.isfinite(seconds):
        return _EMPTY
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


# --- the overview ---


def overview(comparison: Comparison) -> HTML:
    """The runs in a table: status, duration, throughput, the last loss and the best results."""
    results = [n for n in shown_metrics(comparison.runs) if n.startswith("metrics/")]
    results = results[:_MOST_RESULTS]
    names = [name.removeprefix("metrics/") for name in results]
    header = ["run", "status", "batches", "training", "samples/s", "loss", *names]
    best = {name: _best_of(comparison.runs, name) for name in results}
    rows = []
    for index, run, label in _rows(comparison):
        values = {name: _result(run, name) for name in results}
        cells = [
            element("td", label, class_="name"),
            element("td", _status(run)),
            element("td", _progress(run), class_="number"),
            element("td", duration(run.num_seconds), class_="number"),
            element("td", _number(_throughput(run), 3), class_="number"),
            element("td", _number(_last(run.curves.get("loss/train"))), class_="number"),
        ]
        for name, value in values.items():
            wins = value is not None and value == best[name] and len(comparison.runs) > 1
            cells.append(element("td", _number(value), class_="number best" if wins else "number"))
        rows.append(element("tr", *cells, data_run=index))
    note = "Results are the best of each run. Times are those of training, without evaluation."
    return join(table(header, rows), element("p", note, class_="note"))


_SIGNS = {"finished": "good", "running": "busy", "failed": "bad", "not ended": "bad"}


def _status(run: RecordedRun) -> HTML:
    sign = element("span", run.status, class_=f"status {_SIGNS.get(run.status, '')}".strip())
    return sign if run.error is None else join(sign, element("div", run.error, class_="error"))


def _progress(run: RecordedRun) -> str:
    whole = run.configuration.get("max_duration")
    done = _number(run.num_batches)
    skipped = f", {run.num_skipped} skipped" if run.num_skipped else ""
    return f"{done}{skipped}" + (f" of {whole}" if isinstance(whole, str) else "")


def _throughput(run: RecordedRun) -> float | None:
    samples, seconds = run.clock.samples, run.clock.seconds
    if len(samples) and len(seconds) and seconds.values[-1] > 0 and samples.values[-1] > 0:
        return samples.values[-1] / seconds.values[-1]
    return None


def _last(curve: Curve | None) -> float | None:
    return curve.values[-1] if curve is not None and len(curve) else None


def _result(run: RecordedRun, name: str) -> float | None:
    """Return the best value of a result, or the last one if its name does not tell."""
    curve = run.curves.get(name)
    mode = known_mode(name.removeprefix("metrics/"), None)
    if curve is None or mode is None:
        return _last(curve)
    values = [value for _, value in curve.finite()]
    return (min if mode == "min" else max)(values, default=None)


def _best_of(runs: Sequence[RecordedRun], name: str) -> float | None:
    mode = known_mode(name.removeprefix("metrics/"), None)
    found = [value for run in runs if (value := _result(run, name)) is not None]
    if mode is None:
        return None
    return (min if mode == "min" else max)(found, default=None)


# --- problems and warnings ---


def problems(comparison: Comparison) -> HTML | None:
    """What could not be read, and metrics that are not finite."""
    items = []
    for index, run, label in _rows(comparison):
        found = list(run.problems)
        for name in shown_metrics([run]):
            if bad := run.curves[name].nonfinite():
                batches = "1 batch" if len(bad) == 1 else f"{_number(len(bad))} batches"
                found.append(f"{name} is NaN or infinite at {batches}, first at {bad[0]}.")
        items += [element("li", label, " ", text, data_run=index) for text in found]
    return element("ul", *items, class_="problems") if items else None


def warnings(comparison: Comparison) -> HTML | None:
    """The warnings of each run, and the caveats of its plan."""
    rows = []
    for index, run, label in _rows(comparison):
        shown = [
            (one.category, one.message, f"batch {one.batch}, {one.where}", one.count)
            for one in run.warnings
        ]
        caveats = _plan(run).get("caveats")
        for one in caveats if isinstance(caveats, list) else ():
            shown.append(("caveat of the plan", as_text(one), "", 1))
        for category, message, where, count in shown:
            times = f" ({count} times)" if count > 1 else ""
            rows.append(
                element(
                    "tr",
                    element("td", label, class_="name"),
                    element("td", category),
                    element("td", message, element("div", f"{where}{times}", class_="note")),
                    data_run=index,
                )
            )
    return table(["run", "category", "message"], rows) if rows else None


# --- differences and settings ---


def differences(comparison: Comparison) -> HTML | None:
    """The settings and facts that differ, and the batches at which the runs part."""
    if len(comparison.runs) == 1:
        return None
    settings = comparison.differing(comparison.settings)
    system = comparison.differing(comparison.system)
    parts = [_settings_table(comparison, {**settings, **system})]
    if not settings and not system:
        parts = [element("p", "The recorded configurations are equal.")]
    return join(*parts, _partings(comparison))


def _partings(comparison: Comparison) -> HTML:
    """From which batch on each run differs from the first one."""
    outcomes: dict[str, list[int]] = {}
    for index in range(1, len(comparison.runs)):
        batch, compared = first_difference(comparison.runs[0], comparison.runs[index])
        if not compared:
            text = "no batch in common"
        elif batch is None:
            text = f"bit-identical losses and learning rates in all {_number(compared)} batches"
        else:
            text = f"other losses or learning rates from batch {_number(batch)} on"
        outcomes.setdefault(text, []).append(index)
    lines = [
        element("li", f"{text}: ", *(element("span", _label(comparison, run)) for run in runs))
        for text, runs in outcomes.items()
    ]
    heading = element("p", "Compared with ", _label(comparison, 0), ":")
    return element("div", heading, element("ul", *lines), class_="partings")


def _settings_table(comparison: Comparison, values: Mapping[str, Sequence[str]]) -> HTML:
    header = [
        "setting",
        *(element("span", _label(comparison, i)) for i in range(len(comparison.runs))),
    ]
    rows = []
    for name, row in list(values.items())[:_MOST_SETTINGS]:
        differs = len(set(row)) > 1
        cells = [element("td", one or _EMPTY) for one in row]
        rows.append(
            element("tr", element("td", name, class_="name"), *cells, class_="differs" if differs else None)
        )
    body = table(header, rows)
    left_out = len(values) - _MOST_SETTINGS
    if left_out > 0:
        body = join(body, element("p", f"… and {left_out} more", class_="note"))
    return body


def _folded(summary: str, body: HTML) -> HTML:
    return element("details", element("summary", summary), body)


def configuration(comparison: Comparison) -> HTML | None:
    """All hyperparameters and facts about the system."""
    modules = {n: v for n, v in comparison.settings.items() if n.split("/")[0] == "modules"}
    settings = {n: v for n, v in comparison.settings.items() if n not in modules}
    tables = {
        "Hyperparameters and data": settings,
        "Layers of the model": modules,
        "System": comparison.system,
    }
    folded = [
        _folded(f"{summary} ({len(values)})", _settings_table(comparison, values))
        for summary, values in tables.items()
        if values
    ]
    return join(*folded) if folded else None


# --- the time split ---

_PARTS = {  # the parts of TimeSplit, with their colors
    "data": "#b4690e",
    "forward": "#3a62c8",
    "backward": "#7d55c7",
    "optimizer": "#17805f",
    "evaluation": "#0b7f8b",
    "saving": "#c23860",
    "other": "#6b7683",
}


def time_split(comparison: Comparison) -> HTML | None:
    """The share of each part of training, as bars."""
    rows = []
    for index, run, label in _rows(comparison):
        split = {n: s for n, s in run.time_split.items() if math.isfinite(s) and s > 0}
        if whole := sum(split.values()):
            parts = [(n, split[n]) for n in (*_PARTS, *split.keys() - _PARTS.keys()) if n in split]
            bars = [_bar(name, seconds, whole) for name, seconds in parts]
            total = element("span", duration(whole), class_="total")
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
    return join(legend, *rows, element("p", note, class_="note"))


def _bar(name: str, seconds: float, whole: float) -> HTML:
    share = 100 * seconds / whole
    text = f"{name}: {duration(seconds)}, {share:.3g} %"
    inside = f"{share:.0f} %" if share >= 6 else ""
    color = _PARTS.get(name, "#6b7683")
    style = f"width:{share:.3f}%;background:{color}"
    return element("span", inside, style=style, title=text)


# --- the plan ---


def _plan(run: RecordedRun) -> dict[str, Any]:
    plan = run.configuration.get("plan")
    return plan if isinstance(plan, dict) else {}


def plan(comparison: Comparison) -> HTML | None:
    """When each algorithm is active, and the steps of the plan."""
    alike: dict[str, list[int]] = {}
    for index, run in enumerate(comparison.runs):
        key = as_text(_plan(run).get("timeline")) + as_text(run.configuration.get("algorithms"))
        if _plan(run):
            alike.setdefault(key, []).append(index)
    return join(*(_plan_of(comparison, runs) for runs in alike.values())) if alike else None


def _plan_of(comparison: Comparison, runs: Sequence[int]) -> HTML:
    run = comparison.runs[runs[0]]
    names = [element("span", _label(comparison, index)) for index in runs]
    heading = element("h3", *names) if len(comparison.runs) > 1 else HTML("")
    timeline = _timeline(_dicts(_plan(run).get("timeline")), run.configuration.get("max_duration"))
    steps = _dicts(_plan(run).get("steps"))
    calls = run.configuration.get("algorithms")
    listed = calls.values() if isinstance(calls, dict) else ()
    code = element("pre", "\n".join(map(as_text, listed))) if listed else HTML("")
    columns = ("event", "who", "stage", "why")
    rows = [
        element("tr", *(element("td", as_text(step.get(name, ""))) for name in columns))
        for step in steps
    ]
    folded = _folded(f"Steps in their order ({len(rows)})", table(list(columns), rows))
    return element("div", heading, timeline, code, folded if rows else "", data_runs=_numbers(runs))


def _numbers(runs: Sequence[int]) -> str:
    return " ".join(map(str, runs))


def _dicts(values: Any) -> list[dict[str, Any]]:
    return [one for one in values if isinstance(one, dict)] if isinstance(values, list) else []


def _timeline(rows: list[dict[str, Any]], whole: Any) -> HTML:
    if not rows:
        return element("p", "No algorithms.", class_="note")
    built = []
    for row in rows:
        spans = row.get("spans") if isinstance(row.get("spans"), list) else []
        bars = [_span(span, whole) for span in spans if isinstance(span, list) and len(span) == 3]
        name = element("b", as_text(row.get("name", "")))
        stage = element("small", as_text(row.get("stage", "")))
        built += [
            element("div", name, stage, class_="track-name"),
            element("div", *bars, class_="track"),
        ]
    scale = ["0", "¼", "½", "¾", as_text(whole) if isinstance(whole, str) else "1"]
    ticks = element("div", *(element("span", tick) for tick in scale), class_="ticks")
    return element("div", *built, element("div"), ticks, class_="timeline")


def _span(span: list[Any], whole: Any) -> HTML:
    start, end = (min(max(as_number(value) or 0.0, 0.0), 1.0) for value in span[:2])
    conditions = [as_text(one) for one in span[2]] if isinstance(span[2], list) else []
    limits = f"{start:.0%} to {end:.0%}" if end > start else f"once, at {start:.0%}"
    text = ", ".join([f"{limits} of {as_text(whole)}", *conditions])
    kind = "once" if end <= start else "sometimes" if conditions else "always"
    style = f"left:{100 * start:.3f}%;width:{100 * max(end - start, 0):.3f}%"
    return element("span", class_=kind, style=style, title=text)


# --- checkpoints ---


def checkpoints(comparison: Comparison) -> HTML | None:
    """The checkpoints of each run."""
    rows, left_out = [], 0
    for index, run, label in _rows(comparison):
        left_out += max(len(run.checkpoints) - _MOST_CHECKPOINTS, 0)
        for one in run.checkpoints[-_MOST_CHECKPOINTS:]:
            best, size = one["best"], one["bytes"]
            shown = f"best {best['metric']}: {as_text(best['value'])}" if best else ""
            rows.append(
                element(
                    "tr",
                    element("td", label, class_="name"),
                    element("td", one["name"]),
                    element("td", _number(as_batch(one["batch"])), class_="number"),
                    element("td", f"{size / 1e6:.3g} MB", class_="number"),
                    element("td", _date(one["created"]), class_="number"),
                    element("td", shown or ("" if one["complete"] else "weights only")),
                    data_run=index,
                )
            )
    if not rows:
        return None
    body = table(["run", "checkpoint", "batch", "size", "written (UTC)", ""], rows)
    return join(body, element("p", f"… and {left_out} more", class_="note")) if left_out else body


def _date(seconds: Any) -> str:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError, TypeError):
        return _EMPTY


# --- images ---


def images(comparison: Comparison) -> HTML | None:
    """Images over the course of each run, as many as fit."""
    blocks, room = [], _MOST_BYTES // max(sum(bool(r.images) for r in comparison.runs), 1)
    for index, run, label in _rows(comparison):
        if not run.images:
            continue
        by_name: dict[str, list[Image]] = {}
        for image in run.images:
            by_name.setdefault(image.name, []).append(image)
        names = list(by_name)[:_MOST_NAMES]
        each = room // len(names)
        strips = [_strip(name, by_name[name], each) for name in names]
        heading = element("h3", element("span", label))
        count = sum(len(by_name[name]) for name in names)
        note = f"{count} of {len(run.images)} images" if count < len(run.images) else ""
        blocks.append(element("div", heading, *strips, _note(note), data_run=index))
    return join(*blocks) if blocks else None


def _note(text: str) -> HTML:
    return element("p", text, class_="note") if text else HTML("")


def _strip(name: str, found: Sequence[Image], room: int) -> HTML:
    """Show images of one name, spread over the run, in a number of bytes."""
    pictures = []
    chosen = _spread([one for one in found if one.bytes <= room // 2], _MOST_IMAGES)
    for image in reversed(chosen):  # the last ones first, if not all fit
        if image.bytes > room:
            continue
        room -= image.bytes
        caption = "" if image.batch is None else f"batch {image.batch}"
        try:
            picture = element("img", src=image.as_url(), alt=f"{name} {caption}".strip())
        except OSError:
            continue
        pictures.append(element("figure", picture, element("figcaption", caption)))
    left_out = len(found) - len(pictures)
    more = f" ({left_out} more in the run folder)" if left_out else ""
    strip = element("div", *reversed(pictures), class_="strip")
    return join(element("p", name, element("span", more, class_="note")), strip)


def _spread(values: list[Image], most: int) -> list[Image]:
    if len(values) <= most:
        return values
    return [values[i * (len(values) - 1) // (most - 1)] for i in range(most)]


# --- the curves, which a script draws ---


def curves(comparison: Comparison) -> HTML | None:
    """A place for the chart of each metric."""
    by_section: dict[str, list[HTML]] = {}
    for number, name in enumerate(shown_metrics(comparison.runs)):
        having = [i for i, run in enumerate(comparison.runs) if len(run.curves.get(name, ()))]
        chart = element(
            "figure",
            element("figcaption", name, title=name),
            element("div", class_="plot"),
            class_="chart",
            data_chart=number,
            data_runs=_numbers(having),
        )
        by_section.setdefault(section_of(name), []).append(chart)
    grids = []
    for heading, charts in by_section.items():
        title = element("h3", heading) if heading else ""
        grids.append(join(title, element("div", *charts, class_="charts")))
    return join(*grids) if grids else None


SECTIONS: Mapping[str, Section] = {
    "Overview": overview,
    "Problems": problems,
    "Differences": differences,
    "Curves": curves,
    "Time": time_split,
    "Plan": plan,
    "Images": images,
    "Checkpoints": checkpoints,
    "Warnings": warnings,
    "Configuration": configuration,
}
"""The sections in the order of the page; one that has nothing to show returns None."""
