"""The command line: `composable checkpoint inspect PATH`, and so on.

Exit status: 0, all is well; 1, a checkpoint is damaged or doesn't fit; 2, wrong usage, or there is
nothing at that path.

A command is a function that takes its parsed options and returns the exit status. `_COMMANDS` says
how each group of them is added to the parser.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from composable.cli.replay import add_diff, add_replay

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: Those of the command line by default.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="composable", description="Tools for training runs.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for add in _COMMANDS:
        add(commands)
    options = parser.parse_args(arguments)
    from composable.checkpoint import CheckpointError, MissingCheckpointError

    try:
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except CheckpointError as error:
        print(f"composable: {error}", file=sys.stderr)
        return 2 if isinstance(error, MissingCheckpointError) else 1
    except BrokenPipeError:  # whoever read along has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _add_checkpoint(commands: Any) -> None:
    group = commands.add_parser("checkpoint", help="look into checkpoints")
    verbs = group.add_subparsers(metavar="COMMAND", required=True)

    inspect = verbs.add_parser("inspect", help="print what is in a checkpoint")
    inspect.add_argument("path", help="a checkpoint, or a folder of several")
    inspect.add_argument("--json", action="store_true", help="print JSON")
    inspect.set_defaults(run=_inspect)

    verify = verbs.add_parser("verify", help="check every byte of a checkpoint")
    verify.add_argument("path", help="a checkpoint, or a folder of several")
    verify.set_defaults(run=_verify)


def _inspect(options: argparse.Namespace) -> int:
    from composable.checkpoint import inspect

    if inspect.is_checkpoint(options.path):
        description, render = inspect.describe(options.path), inspect.render
    else:
        description, render = inspect.describe_all(options.path), inspect.render_all
    print(json.dumps(description, indent=1) if options.json else render(description))
    return 1 if description.get("broken") else 0


def _verify(options: argparse.Namespace) -> int:
    from composable.checkpoint import find, inspect, verify

    if inspect.is_checkpoint(options.path):
        verify(options.path)
        print(f"{options.path}: whole")
        return 0
    whole, broken = find(options.path, thorough=True)
    for found in whole:
        print(f"{found.path}: whole")
    for each in broken:
        print(f"{each.path}: BROKEN: {each.error}")
    return 1 if broken else 0


_COMMANDS: tuple[Callable[[Any], None], ...] = (_add_checkpoint, add_replay, add_diff)
