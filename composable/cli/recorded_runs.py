"""`composable replay`, `composable diff` and `composable report`: recorded runs."""

import argparse
import sys
import traceback
from collections.abc import Callable
from typing import Any

from composable._support.printable import printable
from composable.cli._errors import refuse


def add_replay(commands: Any) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "replay",
        usage="%(prog)s [-h] --batch BATCH [--changed] RUN [-- ARGUMENTS]",
        help="train on one batch of a recorded run again",
        description=(
            "Runs the script that run.json of the run names, with its arguments and in its folder, "
            "up to one batch, from the nearest checkpoint, and compares the loss bit for bit with "
            "the recorded one. It executes that script: replay only runs that you trust. The "
            "Trainer writes nothing, but everything else in the script has its usual effects. "
            "ARGUMENTS replace the recorded arguments of the script."
        ),
    )
    parser.add_argument("folder", metavar="RUN", help="the save_folder of the run")
    parser.add_argument("--batch", type=_number, required=True, help="which batch, counted from 0")
    parser.add_argument(
        "--changed", action="store_true", help="run the script even if it has changed"
    )
    parser.set_defaults(run=_replay)


def add_diff(commands: Any) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "diff", help="find the first step, metric and tensor that differ between two runs"
    )
    parser.add_argument("first", metavar="RUN_A", help="the save_folder of a run")
    parser.add_argument("second", metavar="RUN_B", help="the save_folder of another run")
    parser.set_defaults(run=_diff)


def add_report(commands: Any) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "report",
        help="write an HTML report of one or several runs",
        description=(
            "Writes one HTML file, which opens without a network: curves, differences, the time "
            "split, the plan, checkpoints and warnings. Runs whose settings differ in the "
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
    parser.set_defaults(run=_report)


def _number(text: str) -> int:
    """Return a batch number; argparse reports an error in one line."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} must be the number of a batch, 0 or more")
    return int(text)


def _replay(options: argparse.Namespace) -> int:
    from composable.replay import replay_script

    return _print(
        lambda: replay_script(
            options.folder,
            batch=options.batch,
            arguments=options.script_arguments,
            changed=options.changed,
        )
    )


def _diff(options: argparse.Namespace) -> int:
    from composable.runs.diff import diff_runs

    return _print(lambda: diff_runs(options.first, options.second))


def _print(compare: Callable[[], Any]) -> int:
    """Print a comparison, or the error that prevents it, and return the exit status."""
    from composable._support.checks import PathError
    from composable.checkpoint.errors import CheckpointError

    try:
        found = compare()
    except (CheckpointError, PathError) as error:
        return refuse(error)
    except Exception:  # raised by the script of a replay
        traceback.print_exc()
        return 2
    print(found)
    return 0 if found.same else 1


def _report(options: argparse.Namespace) -> int:
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
