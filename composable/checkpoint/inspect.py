"""Describe checkpoints, as text and as JSON."""

import math
import os
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from composable._support.printable import printable
from composable._support.strict_json import JSON, MAX_INTEGER
from composable._support.table import format_table
from composable.checkpoint.files import find, holds_files_of_one, read
from composable.checkpoint.manifest import Manifest
from composable.checkpoint.tree import unpack

_CHUNK = 1 << 22


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a checkpoint, valid or broken, rather than a folder of several."""
    return holds_files_of_one(Path(path)) or not Path(path).is_dir()


def describe(path: str | os.PathLike[str]) -> dict[str, JSON]:
    """Describe a checkpoint, as JSON.

    Args:
        path: The checkpoint; all of it is read and verified.

    Returns:
        A dictionary with the keys `path`, `manifest`, `timestamp` and `run` (None if the state has
        none), `state` (the names of the top-level entries), and `tensors`: the name, dtype, shape
        and norm of each. The norm is the root of the sum of squares; it is a string if it is not
        finite.

    Raises:
        CheckpointError: The checkpoint cannot be read.
    """
    contents = read(path)
    tree = unpack(contents.tensors, contents.data)
    tree = tree if isinstance(tree, dict) else {}
    state = tree.get("state")
    return {
        "path": str(contents.path),
        "manifest": _describe_manifest(contents.manifest),
        "timestamp": _plain(state.get("timestamp") if isinstance(state, dict) else None),
        "run": _plain(tree.get("run")),
        "state": sorted(map(str, tree)),
        "tensors": [
            {
                "name": name,
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": list(tensor.shape),
                "norm": _plain(_norm(tensor)),
            }
            for name, tensor in sorted(contents.tensors.items())
        ],
    }


def describe_all(folder: str | os.PathLike[str]) -> dict[str, JSON]:
    """Describe the checkpoints in a folder, the most recent first, and the broken ones.

    Raises:
        CheckpointError: The folder does not exist or cannot be read.
    """
    whole, broken = find(folder)
    return {
        "path": str(Path(folder).absolute()),
        "checkpoints": [
            {"name": found.path.name, "manifest": _describe_manifest(found.manifest)}
            for found in whole
        ],
        "broken": [{"name": each.path.name, "error": str(each.error)} for each in broken],
    }


def format_description(description: Mapping[str, Any]) -> str:
    """Format the result of `describe` as text."""
    manifest = description["manifest"]
    lines = [
        f"checkpoint  {description['path']}",
        f"written     {manifest['created']} by composable {manifest['library']}, "
        f"torch {manifest['torch']}, schema {manifest['schema']}",
        *_lines("info", manifest["info"]),
        *_lines("time", _short(description["timestamp"])),
        *_lines("run", description["run"]),
        f"state       {', '.join(description['state'])}",
        f"tensors     {len(description['tensors'])}, {manifest['bytes']} bytes"
        + (f" in {manifest['files']} files" if manifest["files"] > 1 else ""),
    ]
    rows = []
    for one in description["tensors"]:
        norm = one["norm"] if isinstance(one["norm"], str) else f"{one['norm']:.6g}"
        rows.append((printable(one["name"]), one["dtype"], str(one["shape"]), f"norm {norm}"))
    table = format_table(rows, indent="  ", max_width=60)
    return "\n".join([*map(printable, lines), *table.splitlines()])


def render_all(description: Mapping[str, Any]) -> str:
    """Format the result of `describe_all` as text."""
    lines = [f"checkpoints in {description['path']}, most recent first"]
    for found in description["checkpoints"]:
        manifest = found["manifest"]
        lines.append(
            f"  {found['name']}  batch {manifest['info'].get('batch', '?')}, written "
            f"{manifest['created']}, {manifest['bytes']} bytes"
        )
    lines += [f"  {each['name']}  BROKEN: {each['error']}" for each in description["broken"]]
    if len(lines) == 1:
        lines.append("  none")
    return "\n".join(map(printable, lines))


def _describe_manifest(manifest: Manifest) -> dict[str, JSON]:
    return {
        "schema": manifest.schema,
        "library": manifest.library,
        "torch": manifest.torch,
        "created": _date(manifest.created),
        "info": _plain(manifest.info),
        "bytes": sum(record.size for record in manifest.files.values()),
        "files": len(manifest.tensor_files),
    }


def _date(seconds: float) -> str:
    try:
        date = datetime.fromtimestamp(seconds, timezone.utc)
    except (ValueError, OverflowError, OSError):  # after the year 9999
        return f"{seconds:.0f} seconds after 1970"
    return date.isoformat(sep=" ", timespec="seconds")


def _norm(tensor: Tensor) -> float:
    """Compute the Euclidean norm in double precision, without a copy of the whole tensor."""
    numbers = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    chunks = torch.split(numbers.reshape(-1), _CHUNK)
    return math.sqrt(sum(float(chunk.double().square().sum()) for chunk in chunks))


def _plain(value: Any) -> JSON:
    """Convert a tree to JSON for display: values that are not JSON become strings."""
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        return f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Tensor):
        return f"tensor of {value.dtype} {list(value.shape)}"
    if attrs.has(type(value)) and type(value).__name__ == "Timestamp":
        return _plain(attrs.asdict(value))
    try:
        return str(value)
    except ValueError:  # Python prints no integers of so many digits, in a Time or a fraction
        return f"a {type(value).__name__} with too many digits to print"


def _short(timestamp: JSON) -> JSON:
    """Format a timestamp as one line, without its zeros."""
    if not isinstance(timestamp, dict):
        return timestamp
    return ", ".join(f"{name} {count}" for name, count in timestamp.items() if count) or "the start"


def _lines(title: str, value: JSON) -> Iterator[str]:
    if value in (None, {}, []):
        return
    if not isinstance(value, (dict, list)):
        yield f"{title:11} {value}"
        return
    yield title
    yield from _indented(value, "  ")


def _indented(value: Any, indent: str) -> Iterator[str]:
    items = value.items() if isinstance(value, dict) else (("-", item) for item in value)
    for name, item in items:
        if isinstance(item, (dict, list)) and item:
            yield f"{indent}{name}:"
            yield from _indented(item, indent + "  ")
        else:
            yield f"{indent}{name}: {item}" if name != "-" else f"{indent}- {item}"
