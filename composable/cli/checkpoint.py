"""`composable checkpoint`: `inspect PATH`, `verify PATH` and `consolidate SOURCE TARGET`."""

import argparse
import json
from typing import Any

__all__ = ["add"]


def add(commands: Any) -> None:
    """Add the command to a parser."""
    group = commands.add_parser("checkpoint", help="inspect, verify and convert checkpoints")
    verbs = group.add_subparsers(metavar="COMMAND", required=True)

    inspect = verbs.add_parser("inspect", help="print the contents of a checkpoint")
    inspect.add_argument("path", help="a checkpoint, or a folder of checkpoints")
    inspect.add_argument("--json", action="store_true", help="print JSON")
    inspect.set_defaults(run=_inspect)

    verify = verbs.add_parser("verify", help="verify every byte of a checkpoint")
    verify.add_argument("path", help="a checkpoint, or a folder of checkpoints")
    verify.set_defaults(run=_verify)

    one = verbs.add_parser("consolidate", help="copy a sharded checkpoint into one file of tensors")
    _add_paths(one, "a checkpoint", "the checkpoint to write")
    one.set_defaults(run=_consolidate)


def _add_paths(parser: argparse.ArgumentParser, source: str, target: str) -> None:
    parser.add_argument("source", metavar="SOURCE", help=source)
    parser.add_argument("target", metavar="TARGET", help=target)
    parser.add_argument("--overwrite", action="store_true", help="replace an existing TARGET")


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


def _consolidate(options: argparse.Namespace) -> int:
    from composable.checkpoint import consolidate
    from composable.core._printable import printable

    written = consolidate(options.source, options.target, overwrite=options.overwrite)
    print(printable(f"{written}: written"))
    return 0
