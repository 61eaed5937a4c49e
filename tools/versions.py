"""Record the versions of the packages with which tests have passed, for docs/status.md.

python -m tools.versions newest    # at the end of `make newest`, as of `make lowest`
python -m tools.versions --import  # at the end of `make once`, after importing every module
"""

import argparse
import importlib
import json
import pkgutil
import platform
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["FLOOR", "RECORDS", "package_table", "run_table"]

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "docs/evidence/versions"
COMPLETE = ("lowest", "newest")
"""The runs that also write a column of the table of packages."""

FLOOR = re.compile(r'"([\w.-]+)(?:\[\w+\])?>=([\d.]+)"')
"""A requirement in pyproject.toml."""


def versions() -> dict[str, str]:
    """Return the versions of the installed packages that pyproject.toml has a floor for."""
    found = {}
    for name in sorted({name for name, _ in FLOOR.findall((ROOT / "pyproject.toml").read_text())}):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def import_all() -> None:
    """Import every module of the package whose extras are installed."""
    import composable

    for module in pkgutil.walk_packages(composable.__path__, "composable."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if "pip install" not in str(error):
                raise


def records() -> dict[str, dict[str, Any]]:
    """Return what was recorded, by the name of the run."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(RECORDS.glob("*.json"))}


def run_table() -> Iterator[str]:
    """Yield a table of the runs."""
    yield from ("| run | Python | PyTorch | tests |", "|---|---|---|---|")
    for name, found in records().items():
        yield (f"| {name} | {found['python']} | {found['packages']['torch']} | {found['tests']} |")


def package_table() -> Iterator[str]:
    """Yield a table of the packages, with their versions in the complete runs."""
    found = records()
    runs = {name: found[name]["packages"] for name in COMPLETE if name in found}
    yield from (f"| package | {' | '.join(runs)} |", f"|---|{'---|' * len(runs)}")
    for name in sorted({name for run in runs.values() for name in run}):
        yield f"| {name} | {' | '.join(run.get(name, 'not run') for run in runs.values())} |"


def main() -> None:
    """Write the record of a run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", nargs="?", default="once", choices=[*COMPLETE, "once"])
    parser.add_argument("--import", dest="imports", action="store_true")
    given = parser.parse_args()
    if given.imports:
        import_all()
    found, python = versions(), platform.python_version()
    name = given.run
    if name == "once":
        name = f"python{python.rpartition('.')[0]}-torch{found['torch'].partition('+')[0]}"
    RECORDS.mkdir(exist_ok=True)
    record = {"python": python, "tests": f"`make {given.run}`", "packages": found}
    (RECORDS / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
