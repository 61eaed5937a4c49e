"""The page of the results, docs/evidence/gpu/index.md, from the files of the parts."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.plots import plot_ratios

__all__ = ["TITLES", "cell", "count_cases", "write_page"]

TITLES = {
    "precisions": "Runs repeat and resume bit for bit",
    "methods": "Every method",
    "features": "Memory, copies, observers, export",
    "processes": "Several processes",
    "waits": "No waiting in a step",
    "overhead": "Overhead of the loop",
    "peers": "Other trainers",
    "compile": "Compiled steps",
    "costs": "Costs of methods",
    "augmentations": "Augmentations on the device",
    "models": "Steps of real models",
    "digits": "Time to an accuracy",
    "language": "Time to a loss",
}
_SHOWN = {
    "device": "",
    "driver": "driver ",
    "cuda": "CUDA ",
    "torch": "torch ",
    "python": "Python ",
}
"""Facts about the environment, and the words before them."""

_HIDDEN = {"case", "status", "error", "traceback", "files", "throughput"}


def write_page(folder: Path) -> Path:
    """Write the page of the results in a folder, and return its path."""
    path = folder / "index.md"
    path.write_text("\n".join(_lines(folder)) + "\n", encoding="utf-8")
    return path


def _lines(folder: Path) -> Iterator[str]:
    yield "# On a GPU"
    yield ""
    yield (
        "Written by `make gpu`. A ratio is that of the Trainer's step to the step of a plain loop "
        "in the same process, interleaved; 0.98 is two percent faster."
    )
    paths = {name: folder / f"{name}.json" for name in TITLES}
    if not_run := [f"`{name}`" for name, path in paths.items() if not path.exists()]:
        yield ""
        yield f"Not run: {', '.join(not_run)}."
    for name, path in paths.items():
        if path.exists():
            result = json.loads(path.read_text(encoding="utf-8"))
            yield from _part(TITLES[name], result)
            plot = path.with_suffix(".svg")
            if plot_ratios(plot, result["cases"]):
                yield ""
                yield f"![Ratios: {TITLES[name].lower()}]({plot.name})"


def _part(title: str, result: Mapping[str, Any]) -> Iterator[str]:
    found, cases = result["environment"], result["cases"]
    yield from ("", f"## {title}", "")
    where = ", ".join(f"{label}{found[key]}" for key, label in _SHOWN.items() if key in found)
    stopped = f" **It ended early: {result['error']}.**" if result["error"] else ""
    size = " Sizes are those of a test of the code." if found.get("size") == "tiny" else ""
    yield f"{where}; {result['seconds']:.0f} s; {count_cases(cases)}.{stopped}{size}"
    columns = list(dict.fromkeys(k for case in cases for k in case if k not in _HIDDEN))
    if cases:
        yield ""
        yield f"| case | {' | '.join(['result', *map(_title, columns)])} |"
        yield f"|---|{'---|' * (len(columns) + 1)}"
    for case in cases:
        values = [_value(case.get(column)) for column in columns]
        yield f"| {cell(case['case'])} | {' | '.join([_status(case), *values])} |"


def count_cases(cases: Sequence[Mapping[str, Any]]) -> str:
    """Count cases by their status, as in "3 passed, 1 failed"."""
    counts = dict.fromkeys(("passed", "measured", "failed", "missing"), 0)
    for case in cases:
        counts[case["status"]] += 1
    return ", ".join(f"{n} {status}" for status, n in counts.items() if n) or "no case"


def _title(column: str) -> str:
    return column.replace("_", " ")


def _status(case: Mapping[str, Any]) -> str:
    error = f": {cell(case['error'])}" if "error" in case else ""
    return f"**{case['status']}**{error}" if case["status"] == "failed" else case["status"] + error


def _value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return " to ".join(map(_value, value))
    return cell(value)


def cell(value: Any) -> str:
    """Return a text for a cell: one line, in which no character means something."""
    text = " ".join(str(value).split())[:300]
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "\\<").replace("`", "'")
