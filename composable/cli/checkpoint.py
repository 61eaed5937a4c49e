"""`composable checkpoint inspect PATH` and `composable checkpoint verify PATH`."""

import argparse
import json
from typing import Any

__all__ = ["add"]


def add(commands: Any) -> None:
    """Add the command to a parser."""
    group = commands.add_parser("checkpoint", help="inspect and verify checkpoints")
    verbs = group.add_subparsers(metavar="COMMAND", required=True)

    inspect = verbs.add_parser("inspect", help="print the contents of a checkpoint")
    inspect.add_argument("path", help="a checkpoint, or a folder of checkpoints")
    inspect.add_argument("--json", action="store_true", help="print JSON")
    inspect.set_defaults(run=_inspect)

    verify = verbs.add_parser("verify", help="verify every byte of a checkpoint")
    verify.add_argument("path", help="a checkpoint, or a folder of checkpoints")
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
    from composable.core._printable import printable

    if inspect.is_checkpoint(options.path):
        verify(options.path)
        print(printable(f"{options.path}: whole"))
        return 0
    whole, broken = find(options.path, thorough=True)
    for found in whole:
        print(printable(f"{found.path}: whole"))
    for each in broken:
        print(printable(f"{each.path}: BROKEN: {each.error}"))
    return 1 if broken else 0
