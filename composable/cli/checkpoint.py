"""`composable checkpoint`: inspect, verify, consolidate, export and import checkpoints."""

import argparse
import json
from pathlib import Path
from typing import Any

from composable._support.printable import printable
from composable.cli._errors import refuse


def add_checkpoint(commands: Any) -> None:
    """Add the command to a parser."""
    group = commands.add_parser("checkpoint", help="inspect, verify and convert checkpoints")
    verbs = group.add_subparsers(metavar="COMMAND", required=True)

    what = "print the contents of a checkpoint, or of a folder of them"
    inspect = verbs.add_parser("inspect", aliases=["ls"], help=what)
    inspect.add_argument("path", help="a checkpoint, or a folder of checkpoints")
    inspect.add_argument("--json", action="store_true", help="print JSON")
    inspect.set_defaults(run=_inspect)

    prune = verbs.add_parser("prune", help="delete old checkpoints in a folder, or at a URL")
    prune.add_argument("path", help="a folder of checkpoints, or its URL")
    prune.add_argument("--keep", type=int, required=True, help="how many of the latest to keep")
    prune.set_defaults(run=_prune)

    verify = verbs.add_parser("verify", help="verify every byte of a checkpoint")
    verify.add_argument("path", help="a checkpoint, or a folder of checkpoints")
    verify.set_defaults(run=_verify)

    one = verbs.add_parser("consolidate", help="copy a sharded checkpoint into one file of tensors")
    _add_paths(one, "a checkpoint", "the checkpoint to write")
    one.add_argument("--overwrite", action="store_true", help="replace an existing TARGET")
    one.set_defaults(run=_consolidate)

    out = verbs.add_parser("export-dcp", help="copy a checkpoint for torch.distributed.checkpoint")
    _add_paths(out, "a checkpoint", "the folder to write")
    out.add_argument("--key", help="the path of the weights to export: state/model/weights")
    out.add_argument("--prefix", default="", help="what the names of the weights begin with")
    out.set_defaults(run=_export)

    into = verbs.add_parser("import-dcp", help="copy a checkpoint of torch.distributed.checkpoint")
    _add_paths(into, "a folder of torch.distributed.checkpoint", "the checkpoint to write")
    into.add_argument("--ignore", action="append", default=[], metavar="PATTERN", help="omit names")
    into.add_argument("--overwrite", action="store_true", help="replace an existing TARGET")
    into.set_defaults(run=_import)


def _add_paths(parser: argparse.ArgumentParser, source: str, target: str) -> None:
    parser.add_argument("source", metavar="SOURCE", help=source)
    parser.add_argument("target", metavar="TARGET", help=target)


def _inspect(options: argparse.Namespace) -> int:
    from composable._support.checks import is_url
    from composable.checkpoint import inspect
    from composable.storage.copies import local

    path = local("path", options.path, "only sizes")
    if inspect.is_checkpoint(path):
        description, render = inspect.describe(path), inspect.format_description
    else:
        description, render = inspect.describe_all(path), inspect.render_all
    if is_url(options.path):
        description["path"] = options.path
    print(json.dumps(description, indent=1) if options.json else render(description))
    return 1 if description.get("broken") else 0


def _prune(options: argparse.Namespace) -> int:
    from composable.storage.copies import prune

    try:
        names = prune(options.path, options.keep)
    except ValueError as error:
        return refuse(error)
    for name in names:
        print(printable(f"{options.path}/{name}: deleted"))
    return 0


def _verify(options: argparse.Namespace) -> int:
    from composable.checkpoint import find, inspect, verify
    from composable.storage.copies import local

    path = local("path", options.path)
    if inspect.is_checkpoint(path):
        verify(path)
        print(printable(f"{options.path}: whole"))
        return 0
    whole, broken = find(path, thorough=True)
    for found in whole:
        print(printable(f"{options.path}/{found.path.name}: whole"))
    for each in broken:
        print(printable(f"{options.path}/{each.path.name}: BROKEN: {each.error}"))
    return 1 if broken else 0


def _consolidate(options: argparse.Namespace) -> int:
    from composable.checkpoint import consolidate
    from composable.storage.copies import local

    return _written(
        consolidate(local("source", options.source), options.target, overwrite=options.overwrite)
    )


def _export(options: argparse.Namespace) -> int:
    from composable.checkpoint import export_dcp
    from composable.storage.copies import local

    return _written(
        export_dcp(
            local("source", options.source), options.target, key=options.key, prefix=options.prefix
        )
    )


def _import(options: argparse.Namespace) -> int:
    from composable.checkpoint import import_dcp

    given = {"ignore": options.ignore, "overwrite": options.overwrite}
    return _written(import_dcp(options.source, options.target, **given))


def _written(path: Path) -> int:
    print(printable(f"{path}: written"))
    return 0
