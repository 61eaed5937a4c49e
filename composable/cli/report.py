"""`composable report RUN [RUN...]`."""

import argparse
import sys
from typing import Any

from composable._support.printable import printable
from composable.cli._report import refuse

__all__ = ["add_report"]


def add_report(commands: Any) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "report",
        help="write an HTML report of one or several runs",
        description=(
            "Writes one HTML file, which opens without a network: curves, differences, the time "
            "split, the plan, checkpoints, warnings and images. Runs whose settings differ in the "
            "seed alone share a color and a band."
        ),
    )
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="the save_folder of a run, or a folder of these"
    )
    parser.add_argument(
        "--output", "-o", metavar="FILE", default="report.html", help="default: report.html"
    )
    parser.add_argument("--title", help="the title of the page")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from composable.report.page import write_report
    from composable.report.recorded_run import find_runs

    try:
        runs = find_runs(options.runs)
        for run in runs:
            for problem in run.problems:
                print(printable(f"{run.folder}: {problem}"), file=sys.stderr)
        path = write_report(runs, options.output, title=options.title)
    except (ImportError, ValueError, OSError) as error:
        return refuse(error)
    noun = "run" if len(runs) == 1 else "runs"
    print(printable(f"{path}: {len(runs)} {noun}, {path.stat().st_size / 1e6:.1f} MB"))
    return 0
