"""The commands of runs: `composable replay RUN --batch K` and `composable diff RUN_A RUN_B`.

Exit status: 0, all is the same to the last bit; 1, it differs; 2, it can't be said.
"""

import argparse
import sys
import traceback
from collections.abc import Callable
from typing import Any

from composable.checkpoint.errors import CheckpointError

__all__ = ["add_diff", "add_replay"]


def add_replay(commands: Any) -> None:
    """Add `composable replay` to a parser."""
    parser = commands.add_parser(
        "replay",
        usage="%(prog)s [-h] --batch BATCH [--changed] RUN [-- ARGUMENTS]",
        help="train on one batch of a recorded run again",
        description=(
            "Runs the script that run.json of the run names, with its arguments and in its folder, "
            "up to one batch, from the nearest checkpoint, and compares the loss with the recorded "
            "one to the last bit. It executes that script: replay no run that you don't trust. The "
            "Trainer writes nothing; what else the script does, it does again. "
            "ARGUMENTS are given to the script instead of the recorded ones."
        ),
    )
    parser.add_argument("folder", metavar="RUN", help="the save_folder of the run")
    parser.add_argument("--batch", type=int, required=True, help="which batch, counted from 0")
    parser.add_argument("--changed", action="store_true", help="even if the script was changed")
    parser.set_defaults(run=_replay)
    _split_off_arguments(parser)


def _split_off_arguments(parser: argparse.ArgumentParser) -> None:
    """Leave what comes after -- to the script: argparse would look for options in it."""
    parse = parser.parse_known_args

    def parse_known_args(given: Any, namespace: Any = None) -> Any:
        own = list(given)
        cut = own.index("--") if "--" in own else None
        options, unknown = parse(own[:cut], namespace)
        options.arguments = None if cut is None else own[cut + 1 :]
        return options, unknown

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign, assignment]


def add_diff(commands: Any) -> None:
    """Add `composable diff` to a parser."""
    parser = commands.add_parser(
        "diff", help="find the first step, metric and tensor at which two runs part"
    )
    parser.add_argument("first", metavar="RUN_A", help="the save_folder of a run")
    parser.add_argument("second", metavar="RUN_B", help="that of another")
    parser.set_defaults(run=_diff)


def _replay(options: argparse.Namespace) -> int:
    from composable.replay import replay_script

    def attempt() -> Any:
        return replay_script(
            options.folder,
            batch=options.batch,
            arguments=options.arguments,
            changed=options.changed,
        )

    return _report(attempt)


def _diff(options: argparse.Namespace) -> int:
    from composable.runs.diff import compare

    return _report(lambda: compare(options.first, options.second))


def _report(make: Callable[[], Any]) -> int:
    try:
        report = make()
    except CheckpointError as error:
        print(f"composable: {error}", file=sys.stderr)
        return 2
    except Exception:  # of the script
        traceback.print_exc()
        return 2
    print(report)
    return 0 if report.same else 1
