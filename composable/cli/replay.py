"""`composable replay RUN --batch BATCH`."""

import argparse
from typing import Any

from composable.cli._report import print_report

__all__ = ["add_replay"]


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
    parser.set_defaults(run=_run)


def _number(text: str) -> int:
    """Return a batch number; argparse reports an error in one line."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be the number of a batch, 0 or more")
    return number


def _run(options: argparse.Namespace) -> int:
    from composable.replay import replay_script

    return print_report(
        lambda: replay_script(
            options.folder,
            batch=options.batch,
            arguments=options.script_arguments,
            changed=options.changed,
        )
    )
