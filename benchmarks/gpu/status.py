"""The rows of docs/status.md about GPUs, from the files of the parts."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.page import TITLES, cell, count_cases

__all__ = ["status_lines", "write_status"]

# What `make test-simgpu` shows of a part: tests/simgpu/test_gpu_parts.py runs them all.
SIMULATED = {
    "precisions": "passes, without tf32",
    "methods": "passes",
    "features": "passes",
    "processes": "passes, over gloo for NCCL",
    "waits": "passes",
    "compile": "passes, without Inductor",
    "language": "not run",
}
MEASURES = "its code runs"
BEGIN, END = "<!-- gpu: written by tools/write_pages.py -->\n", "<!-- end of gpu -->\n"


def write_status(page: Path, folder: Path) -> None:
    """Write the rows between the marks of a page.

    Raises:
        ValueError: The page has no marks.
    """
    text = page.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise ValueError(f"{page} has no lines {BEGIN.strip()} and {END.strip()}")
    before, rest = text.split(BEGIN)
    shown = "\n".join(status_lines(folder))
    page.write_text(f"{before}{BEGIN}\n{shown}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


def status_lines(folder: Path) -> Iterator[str]:
    """Yield a table of what each part has shown on a GPU, or that it has not run on one."""
    results = {name: _on_a_gpu(folder / f"{name}.json") for name in TITLES}
    if not any(results.values()):
        yield "**Nothing has been run on a GPU.**"
        yield ""
    yield from ("| part | simulated | on a GPU | where |", "|---|---|---|---|")
    for name, title in TITLES.items():
        result = results[name]
        found, where = ("not run", "") if result is None else (_found(result), _where(result))
        simulated = SIMULATED.get(name, MEASURES)
        yield f"| {title} (`{name}`) | {simulated} | {found} | {where} |"


def _on_a_gpu(path: Path) -> Mapping[str, Any] | None:
    """Read the result of a part, unless it ran without a GPU, or at the size of a test."""
    if not path.exists():
        return None
    result: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    environment = result["environment"]
    on_a_gpu = environment.get("cuda", "simulated") != "simulated"
    return result if on_a_gpu and environment["size"] == "full" else None


def _found(result: Mapping[str, Any]) -> str:
    """Count the cases, name those that failed or lacked something, and say if it was stopped."""
    names = {
        status: [cell(case["case"]) for case in result["cases"] if case["status"] == status]
        for status in ("failed", "missing")
    }
    shown = [count_cases(result["cases"])]
    shown += [f"{status}: {', '.join(cases)}" for status, cases in names.items() if cases]
    if result["error"]:
        shown.append(f"**{cell(result['error'])}**")
    return "; ".join(shown)


def _where(result: Mapping[str, Any]) -> str:
    environment = result["environment"]
    return cell(f"{environment['device']}, torch {environment['torch']}, {result['date']}")
