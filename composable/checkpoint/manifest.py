"""The manifest of a checkpoint: versions, and the size and hash of each file."""

import os
import re
import sys
import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import attrs
import torch
from typing_extensions import TypedDict

from composable._support import strict_json
from composable._support.checks import as_path
from composable._support.printable import shorten
from composable._support.strict_json import JSON
from composable.checkpoint.errors import DamagedCheckpointError, UnsavableError, VersionError
from composable.core.stateful import Count, Kind, check_type, has_form, is_count
from composable.distributed.processes import Processes

SCHEMA = 4
"""The layout with one file of tensors."""
SHARDED_SCHEMA = 5
"""The layout with several files of tensors, whose headers say which blocks they have."""
TENSORS, STATE, MANIFEST = "tensors.safetensors", "state.json", "manifest.json"
FILES = (TENSORS, STATE, MANIFEST)
_TENSOR_FILE = re.compile(r"tensors-[0-9]{5,}-of-[0-9]{5,}\.safetensors")

_FORMAT = "composable checkpoint"


MAX_MANIFEST = 1 << 20
MAX_STATE = 1 << 28
"""The maximum size of each other file of JSON, in bytes."""


class _Record(TypedDict):
    size: Count
    sha256: Annotated[str, Kind("64 hexadecimal digits", has_form("[0-9a-f]{64}"))]


class _Body(TypedDict):
    format: str
    schema: int
    library: str
    torch: str
    created: Annotated[float, Kind("a time", lambda v: type(v) is float and 0 <= v < 2**40)]
    info: dict[str, Any]
    files: dict[str, _Record]


@attrs.frozen
class FileRecord:
    """The size and hash of a file."""

    size: int
    """The size in bytes."""
    sha256: str


@attrs.frozen
class Manifest:
    """The manifest of a checkpoint."""

    schema: int
    """The version of the layout."""
    library: str
    """The version of this library that wrote it."""
    torch: str
    created: float
    """The time of writing, in seconds since 1970."""
    files: Mapping[str, FileRecord]
    info: Mapping[str, JSON]
    """The entries given by the writer. Checkpoints are sorted by `batch`."""

    @property
    def batch(self) -> int:
        """The number of batches trained on; 0 if the writer did not give it."""
        return self.info.get("batch", 0)  # type: ignore[no-any-return]

    @property
    def sharded(self) -> bool:
        """Whether the tensors are in several files."""
        return self.schema == SHARDED_SCHEMA

    @property
    def tensor_files(self) -> tuple[str, ...]:
        """The names of the files of tensors, in the order of their numbers."""
        return tuple(name for name in self.files if name != STATE)

    def share(self, processes: Processes) -> tuple[str, ...]:
        """Return the files of tensors that one of several processes verifies."""
        return self.tensor_files[processes.rank :: processes.size]


def tensor_file(number: int, count: int) -> str:
    """Return the name of one of several files of tensors; they are numbered from 1."""
    return f"tensors-{number:05d}-of-{count:05d}.safetensors"


def as_target(name: str, folder: str | os.PathLike[str]) -> Path:
    """Return the path of a checkpoint, absolute."""
    path = as_path(name, folder).absolute()
    if not path.name or path.name == "..":
        raise ValueError(f"{name}={str(folder)!r} must end with the name of the checkpoint.")
    return path


def is_part(name: str) -> bool:
    """Return whether a checkpoint may have a file of this name."""
    return name in FILES or _TENSOR_FILE.fullmatch(name) is not None


def is_plain_name(name: object) -> bool:
    """Return whether a value is the name of a visible entry of a folder, and no path.

    Example:
        >>> from composable.checkpoint.manifest import is_plain_name
        >>> [is_plain_name(name) for name in ("ep1-ba5", "../ep1-ba5", "/data", ".hidden", 3)]
        [True, False, False, False, False]
    """
    return (
        isinstance(name, str)
        and not name.startswith(".")
        and not any(c in name for c in "/\\\0")
        and Path(name).name == name != ""
    )


def dump_manifest(records: dict[str, FileRecord], info: dict[str, JSON]) -> bytes:
    body = {
        "format": _FORMAT,
        "schema": SCHEMA if TENSORS in records else SHARDED_SCHEMA,
        "library": sys.modules["composable"].__version__,
        "torch": str(torch.__version__),
        "created": max(time.time(), 0.0),  # a clock may be set before 1970
        "info": info,
        "files": {name: attrs.asdict(record) for name, record in records.items()},
    }
    try:
        raw = dump_sealed(body)
        same = strict_json.load(raw, "info")["info"] == info
    except (TypeError, ValueError, RecursionError, DamagedCheckpointError) as error:
        raise UnsavableError(f"info is not JSON: {error}.") from None
    if not same or len(raw) > MAX_MANIFEST:
        raise UnsavableError(f"info is not JSON, or has more than {MAX_MANIFEST} bytes.")
    return raw


def dump_sealed(body: dict[str, JSON]) -> bytes:
    """Encode the body of a manifest, and its hash."""
    return strict_json.dump(
        {**body, "sha256": sha256(strict_json.dump(body)).hexdigest()}, indent=1
    )


def parse_manifest(raw: bytearray, where: str) -> Manifest:
    body = strict_json.load(raw, where)
    if not isinstance(body, dict) or body.get("format") != _FORMAT:
        raise DamagedCheckpointError(f"{where} is not the manifest of a checkpoint.")
    schema = body.get("schema")
    if type(schema) is not int or schema not in (SCHEMA, SHARDED_SCHEMA):
        raise VersionError(
            f"{where} has schema {shorten(schema, 40)}, but this version reads the schemas "
            f"{SCHEMA} and {SHARDED_SCHEMA}: read it with the commit that saved it."
        )
    body.pop("sha256", None)
    try:
        # Compared as bytes, to detect changes of whitespace too.
        if dump_sealed(body) != raw:
            raise DamagedCheckpointError(f"{where} is damaged: its hash does not match.")
        return _as_manifest(body)
    except (TypeError, ValueError, AttributeError) as error:
        raise DamagedCheckpointError(f"{where} is not a valid manifest: {error}.") from None


def _as_manifest(body: dict[str, JSON]) -> Manifest:
    check_type(body, _Body)
    if not is_count(batch := body["info"].get("batch", 0)):
        raise ValueError(f"batch is {shorten(batch, 40)}, not a non-negative integer")
    names = _names(body["schema"], body["files"])
    files = {name: FileRecord(**body["files"][name]) for name in names}
    del body["format"]
    return Manifest(
        **{**body, "files": MappingProxyType(files), "info": MappingProxyType(body["info"])}
    )


def _names(schema: int, files: Mapping[str, JSON]) -> list[str]:
    """Return the names of the files in the order of their schema."""
    names, wanted = [TENSORS, STATE], f"{TENSORS} and {STATE}"
    if schema == SHARDED_SCHEMA:
        count = max(len(files) - 1, 1)
        names = [*(tensor_file(number, count) for number in range(1, count + 1)), STATE]
        wanted = f"{STATE} and {count} numbered files of tensors"
    if files.keys() != set(names):
        raise ValueError(f"its files are {shorten(list(files), 120)}, not {wanted}")
    return names
