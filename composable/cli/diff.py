"""`composable diff RUN_A RUN_B`."""

import argparse
from typing import Any

from composable.cli._report import print_report

__all__ = ["add_diff"]


def add_diff(commands: Any) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "diff", help="find the first step, metric and tensor that differ between two runs"
    )
    parser.add_argument("first", metavar="RUN_A", help="the save_folder of a run")
    parser.add_argument("second", metavar="RUN_B", help="the save_folder of another run")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from composable.runs.diff import diff_runs

    return print_report(lambda: diff_runs(options.first, options.second))
