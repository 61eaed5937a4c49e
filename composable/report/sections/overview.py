"""The overview: a row for each run."""

from collections.abc import Sequence

from composable.callbacks._results import known_mode
from composable.report.chart_data import shown_metrics
from composable.report.comparison import Comparison
from composable.report.curves import Curve
from composable.report.html import HTML, element, join, table
from composable.report.recorded_run import RecordedRun
from composable.report.sections._common import format_duration, format_number, labelled, note_of

__all__ = ["overview"]

_MOST_RESULTS = 5


def overview(comparison: Comparison) -> HTML:
    """List the runs: status, duration, throughput, the last loss and the best results."""
    results = [n for n in shown_metrics(comparison.runs) if n.startswith("metrics/")]
    results = results[:_MOST_RESULTS]
    names = [name.removeprefix("metrics/") for name in results]
    header = ["run", "status", "batches", "training", "samples/s", "loss", *names]
    best = {name: _best_of(comparison.runs, name) for name in results}
    rows = []
    for index, run, label in labelled(comparison):
        values = {name: _result(run, name) for name in results}
        cells = [
            element("td", label, class_="name"),
            element("td", _status(run)),
            element("td", _progress(run), class_="number"),
            element("td", format_duration(run.num_seconds), class_="number"),
            element("td", format_number(_throughput(run), 3), class_="number"),
            element("td", format_number(_last(run.curves.get("loss/train"))), class_="number"),
        ]
        for name, value in values.items():
            wins = value is not None and value == best[name] and len(comparison.runs) > 1
            cells.append(
                element("td", format_number(value), class_="number best" if wins else "number")
            )
        rows.append(element("tr", *cells, data_run=index))
    note = "Results are the best of each run. Times are those of training, without evaluation."
    return join(table(header, rows), note_of(note))


_SIGNS = {"finished": "good", "running": "busy", "failed": "bad", "not ended": "bad"}


def _status(run: RecordedRun) -> HTML:
    sign = element("span", run.status, class_=f"status {_SIGNS.get(run.status, '')}".strip())
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
