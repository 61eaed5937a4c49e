"""The command line: `composable checkpoint`, `compare`, `launch`, `train` and others.

Exit status of `checkpoint`: 0, the checkpoint is valid; 1, it is damaged; 2, wrong usage, or there
is no checkpoint at that path. Exit status of `replay` and `diff`: 0, everything matches bit for
bit; 1, something differs; 2, wrong usage, or the comparison could not be made. Exit status of
`launch`: the status of the process that failed first; 2, wrong usage. Exit status of `report`: 0,
it is written; 2, wrong usage, or it could not be written. Exit status of `compare`: 0, the arms are
compared; 1, all runs of the baseline or of the other arms failed; 2, wrong usage, or the comparison
cannot start; 130, interrupted. Exit status of `train`: 0, it has trained, or the check passed; 2,
wrong usage, or the settings or the check failed.

Without a command, the help is printed, and `--version` prints the version.

Each command has an `add` function, which adds it to the parser. Heavy imports are inside the
functions that run commands, so that `--help` is fast.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from composable._version import __version__
from composable.cli import checkpoint, compare, launch, recorded_runs, train
from composable.cli._errors import refuse


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: The arguments; by default the process's.

    Returns:
        The exit status.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    own, script_arguments = _split(given)
    parser = argparse.ArgumentParser(prog="composable", description="Tools for training runs.")
    parser.add_argument("--version", action="version", version=f"composable {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for add in (
        checkpoint.add_checkpoint,
        compare.add_compare,
        launch.add_launch,
        recorded_runs.add_replay,
        recorded_runs.add_diff,
        recorded_runs.add_report,
        train.add_train,
    ):
        add(commands)
    if not own:
        parser.print_help()
        return 0
    options, more = parser.parse_known_args(own)
    if more and ("overrides" not in options or any(one.startswith("-") for one in more)):
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    if more:  # overrides that follow an option
        options.overrides = [*options.overrides, *more]
    options.command_line = given
    options.script_arguments = script_arguments
    try:
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        from composable._support.checks import PathError
        from composable.checkpoint import CheckpointError, MissingCheckpointError

        if not isinstance(error, (CheckpointError, PathError)):
            raise
        usage = isinstance(error, (MissingCheckpointError, PathError))
        return refuse(error, 2 if usage else 1)


def _split(given: list[str]) -> tuple[list[str], list[str] | None]:
    """Split the arguments of `replay` at "--": the rest belongs to the script."""
    if given[:1] != ["replay"] or "--" not in given:
        return given, None
    at = given.index("--")
    return given[:at], given[at + 1 :]
