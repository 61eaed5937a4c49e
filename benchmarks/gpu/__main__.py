"""Run what needs a GPU, part by part, and write docs/evidence/gpu.

    python -m benchmarks.gpu                          # every part, on the GPU
    python -m benchmarks.gpu --part overhead          # one part
    python -m benchmarks.gpu --device cpu --size tiny # the code of all parts, in a minute

Each part runs in a process of its own, and writes one JSON file when it ends. Together they take
the given minutes at most: each has a share of them, and what one leaves the next ones get. A part
that is stopped keeps the cases that it has finished. One whose packages are not installed is
missing: carry their wheels to a machine without a network, and name the folder with --wheels.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.gpu.packages import describe_error, lacking, unpack
from benchmarks.gpu.page import write_page
from benchmarks.gpu.status import write_status

# What a faulty run would make worthless comes first.
PARTS: Mapping[str, str] = {
    "precisions": "runs.precisions",
    "methods": "runs.methods",
    "features": "features.features",
    "processes": "features.processes",
    "waits": "runs.waits",
    "overhead": "speed.overhead",
    "peers": "speed.peers",
    "compile": "features.compiled",
    "costs": "speed.method_costs",
    "augmentations": "speed.augmentations",
    "models": "speed.models",
    "digits": "targets.digits",
    "language": "targets.language",
}
SHARES: Mapping[str, int] = {
    "precisions": 50,
    "methods": 80,
    "features": 40,
    "processes": 110,
    "waits": 15,
    "overhead": 40,
    "peers": 20,
    "compile": 70,
    "costs": 90,
    "augmentations": 10,
    "models": 125,
    "digits": 65,
    "language": 5,
}
"""Seconds of each part in 12 minutes, its start included."""
MINUTES = 12.0
FOLDER = Path(__file__).parent.parent.parent / "docs" / "evidence" / "gpu"


def main(arguments: list[str] | None = None) -> int:
    """Run the parts, and return 1 if a case failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--part", action="append", choices=PARTS, help="all by default")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", default="full", choices=("full", "tiny"))
    parser.add_argument("--output", type=Path, default=FOLDER)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all parts together")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels for the parts to import")
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)  # of a part's own process
    options = parser.parse_args(arguments)
    names = options.part or list(PARTS)
    if options.rows is not None:
        return _run_here(names[0], options)
    if options.output == FOLDER and "tests.simgpu.device" in sys.modules:
        parser.error("simulated devices give no evidence; name another --output")
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as unpacked:
        if options.wheels is not None:
            unpack(options.wheels, Path(unpacked))
            sys.path.insert(0, unpacked)
            given = os.environ.get("PYTHONPATH")  # that of the parts, and of their processes
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (unpacked, given)))
        for line in lacking():
            print(line)
        at_once = 2 if options.size == "tiny" else 1  # whose times mean nothing
        ends = _ends(names, 60 * options.minutes)
        with ThreadPoolExecutor(at_once) as pool:
            passed = pool.map(lambda name: _run_part(name, options, ends[name]), names)
            failed = [name for name, one in zip(names, passed, strict=True) if not one]
    write_page(options.output)
    if options.output == FOLDER:
        write_status(FOLDER.parent.parent / "status.md", FOLDER)
    print(f"{options.output / 'index.md'}; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def _ends(names: list[str], seconds: float) -> dict[str, float]:
    """Return when each part must have ended, by the monotonic clock."""
    total, begun, now = sum(SHARES[name] for name in names), 0, time.monotonic()
    ends = {}
    for name in names:
        begun += SHARES[name]
        ends[name] = now + seconds * begun / total
    return ends


def _run_here(name: str, options: Any) -> int:
    """Run a part in this process, and append a line for each case."""
    with options.rows.open("a", encoding="utf-8") as file:
        for row in _rows(name, options):
            _append(file, row)
            if "case" in row:
                print(f"  {row['status']:8} {row['case']}{_short(row)}", flush=True)
    return 0


def _rows(name: str, options: Any) -> Iterator[dict[str, Any]]:
    """Describe the environment, then the result of each case of a part."""
    import importlib

    module, _, function = PARTS[name].partition(".")
    try:
        from benchmarks.gpu.setting import Setting

        setting = Setting(options.device, options.size)
        part: Callable[[Setting], Iterator[dict[str, Any]]] = getattr(
            importlib.import_module(f"benchmarks.gpu.{module}"), function
        )
        environment = setting.environment()
    except Exception as error:  # a package is not installed, or no device is there
        yield {"environment": {"size": options.size}}
        yield {"case": "all", **describe_error(error)}
        return
    yield {"environment": environment}
    yield from part(setting)


def _append(file: Any, row: dict[str, Any]) -> None:
    file.write(json.dumps(row, default=str) + "\n")
    file.flush()


def _short(row: dict[str, Any]) -> str:
    if "error" in row:
        return f": {row['error']}"
    return f": ratio {row['ratio']:.3f}" if "ratio" in row else ""


def _run_part(name: str, options: Any, end: float) -> bool:
    """Run a part in a process of its own, write its file, and return whether no case failed."""
    rows = options.output / f"{name}.jsonl"
    rows.unlink(missing_ok=True)
    print(name, flush=True)
    command = [
        *(sys.executable, "-m", "benchmarks.gpu", "--part", name, "--rows", str(rows)),
        *("--device", options.device, "--size", options.size),
    ]
    started = time.monotonic()
    error = _run_limited(command, max(end - started, 1))
    lines = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
    first, *cases = [json.loads(line) for line in lines] or [{"environment": {}}]
    result = {
        "part": name,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "environment": first["environment"],
        "seconds": round(time.monotonic() - started, 1),
        "error": error,
        "cases": cases,
    }
    path = options.output / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    rows.unlink(missing_ok=True)
    if error is not None:
        print(f"  {error}", flush=True)
    return error is None and all(case["status"] != "failed" for case in cases)


def _run_limited(command: list[str], limit: float) -> str | None:
    """Run a command, end the processes that it leaves, and say what went wrong, if anything."""
    # cuBLAS reads its workspace configuration when the first handle is created.
    environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", **os.environ}
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        status = process.wait(limit)
    except subprocess.TimeoutExpired:
        return f"stopped after {limit:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return f"exit status {status}" if status else None


if __name__ == "__main__":
    sys.exit(main())
