"""The overview: a row for each group of runs, and one for each run."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from composable.report.comparison import RunComparison
from composable.report.curves import Curve
from composable.report.html import HTML, element, join, scrolling_table
from composable.report.recorded_run import RecordedRun
from composable.report.results import (
    best_value,
    group_results,
    mode_of_metric,
    result_names,
)
from composable.report.sections._common import (
    fold,
    format_number,
    format_span,
    group_label,
    labelled,
    note_of,
    run_numbers,
)

__all__ = ["overview"]

_MOST_RESULTS = 5
_NOTE = (
    "Results are the best of each run; ± is the standard deviation over the runs of a group, which "
    "differ in the seed alone. Times are those of training, without evaluation."
)


def overview(comparison: RunComparison) -> HTML:
    """List the groups and the runs: status, duration, throughput, the last loss, the results."""
    names = result_names(comparison.runs)[:_MOST_RESULTS]
    runs = _runs_table(comparison, names)
    if len(comparison.groups) == len(comparison.runs):
        return join(runs, note_of(_NOTE if len(comparison.runs) > 1 else ""))
    groups = _groups_table(comparison, names)
    return join(groups, note_of(_NOTE), fold(f"Each run ({len(comparison.runs)})", runs))


def _table(header: Sequence[str], rows: Sequence[tuple[Sequence[HTML], dict[str, Any]]]) -> HTML:
    """Build a table that can be sorted, and whose rows are cards on a phone."""
    body = [element("tr", *cells, **attributes) for cells, attributes in rows]
    return scrolling_table(list(header), body, class_="sortable cards")


def _cell(column: str, text: Any, value: float | None = None, kind: str = "number") -> HTML:
    return element("td", text, class_=kind, data_column=column, data_value=value)


def _groups_table(comparison: RunComparison, names: Sequence[str]) -> HTML:
    columns: dict[str, Callable[[RecordedRun], float | None]] = {
        "batches": lambda run: run.num_batches,
        "training": lambda run: run.num_seconds,
        "samples/s": _throughput,
        "loss": lambda run: _last(run.curves.get("loss/train")),
        **{name: _best_of(name) for name in names},
    }
    best = {name: _winner(comparison, name) for name in names}
    rows = []
    for index, group in enumerate(comparison.groups):
        runs = [comparison.runs[run] for run in group]
        cells = [
            _cell("runs", group_label(comparison, index), None, "name"),
            _cell("", _statuses(runs), None, ""),
        ]
        for name, read in columns.items():
            values = [value for value in map(read, runs) if value is not None]
            column = name.removeprefix("metrics/")
            format_ = format_span if name == "training" else format_number
            kind = "number best" if best.get(name) == index else "number"
            mean = statistics.fmean(values) if values else None
            spread = statistics.stdev(values) if name in names and len(values) > 1 else None
            text = format_(mean) + (f" ± {format_number(spread, 2)}" if spread is not None else "")
            cells.append(_cell(column, text, mean, kind))
        rows.append((cells, {"data_runs": run_numbers(group)}))
    return _table(["runs", "", *(name.removeprefix("metrics/") for name in columns)], rows)


def _winner(comparison: RunComparison, name: str) -> int | None:
    found = group_results(comparison, name)
    return found[0].group if len(found) > 1 and mode_of_metric(name) else None


def _best_of(name: str) -> Callable[[RecordedRun], float | None]:
    return lambda run: best_value(run, name)


def _statuses(runs: Sequence[RecordedRun]) -> HTML:
    kinds = list(dict.fromkeys(run.status for run in runs))
    counted = [(kind, sum(run.status == kind for run in runs)) for kind in kinds]
    return join(*(_sign(kind, f"{n} {kind} ") for kind, n in counted))


def _runs_table(comparison: RunComparison, names: Sequence[str]) -> HTML:
    best = {name: _extreme(comparison.runs, name) for name in names}
    rows = []
    for index, run, label in labelled(comparison):
        throughput, loss = _throughput(run), _last(run.curves.get("loss/train"))
        cells = [
            _cell("run", label, None, "name"),
            _cell("", _status(run), None, ""),
            _cell("batches", _progress(run), run.num_batches),
            _cell("training", format_span(run.num_seconds), run.num_seconds),
            _cell("samples/s", format_number(throughput, 3), throughput),
            _cell("loss", format_number(loss), loss),
        ]
        for name in names:
            value = best_value(run, name)
            wins = value is not None and value == best[name] and len(comparison.runs) > 1
            kind = "number best" if wins else "number"
            cells.append(_cell(name.removeprefix("metrics/"), format_number(value), value, kind))
        rows.append((cells, {"data_run": index}))
    header = ["run", "status", "batches", "training", "samples/s", "loss"]
    return _table([*header, *(name.removeprefix("metrics/") for name in names)], rows)


_SIGNS = {"finished": "good", "running": "busy", "failed": "bad", "not ended": "bad"}


def _sign(status: str, text: str) -> HTML:
    return element("span", text, class_=f"status {_SIGNS.get(status, '')}".strip())


def _status(run: RecordedRun) -> HTML:
    sign = _sign(run.status, run.status)
    return sign if run.error is None else join(sign, element("div", run.error, class_="error"))


def _progress(run: RecordedRun) -> str:
    whole = run.configuration.get("max_duration")
    done = format_number(run.num_batches)
    skipped = f", {run.num_skipped} skipped" if run.num_skipped else ""
    return f"{done}{skipped}" + (f" of {whole}" if isinstance(whole, str) else "")


def _throughput(run: RecordedRun) -> float | None:
    samples, seconds = run.clock.samples, run.clock.seconds
    if len(samples) and len(seconds) and seconds.values[-1] > 0 and samples.values[-1] > 0:
        return samples.values[-1] / seconds.values[-1]
    return None


def _last(curve: Curve | None) -> float | None:
    return curve.values[-1] if curve is not None and len(curve) else None


def _extreme(runs: Sequence[RecordedRun], name: str) -> float | None:
    mode = mode_of_metric(name)
    found = [value for run in runs if (value := best_value(run, name)) is not None]
    return (min if mode == "min" else max)(found, default=None) if mode else None
