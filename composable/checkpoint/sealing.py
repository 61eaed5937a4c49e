"""Seal the checkpoints of other trainers, which write the files of a folder one after another.

The seal is a file with the size and the hash of each other file. It is written last, when they are
on disk, so that a folder with a seal has all of them.
"""

from pathlib import Path
from typing import Any

from composable._support.paths import hash_prefix, open_regular, write_atomically
from composable._support.strict_json import load
from composable.checkpoint.atomic import sync, sync_all, writable
from composable.checkpoint.errors import DamagedCheckpointError, MissingCheckpointError
from composable.checkpoint.manifest import MAX_MANIFEST, dump_sealed
from composable.checkpoint.reader import readable

SEAL = "sealed.json"
"""The name of the seal in its folder."""
_FORMAT = "composable seal"


def seal(folder: Path) -> None:
    """Write the files of a folder to disk, and then its seal.

    Raises:
        UnwritableCheckpointError: The files or the seal cannot be written.
    """
    with writable(folder):
        (folder / SEAL).unlink(missing_ok=True)
        sync_all(folder)
        paths = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if not p.is_dir()}
        files = {name: _record_of(path) for name, path in sorted(paths.items())}
        write_atomically(folder / SEAL, dump_sealed({"format": _FORMAT, "files": files}))
        sync(folder)
        sync(folder.parent)


def verify_seal(folder: Path) -> None:
    """Compare the files of a folder with its seal; files that it does not list are ignored.

    Raises:
        MissingCheckpointError: There is no seal.
        DamagedCheckpointError: A file is missing, or was changed since it was sealed.
        UnreadableCheckpointError: A file cannot be read.
    """
    where = folder / SEAL
    missing = MissingCheckpointError(f"{where} is missing: the folder was not written to its end.")
    with readable(where, missing), open_regular(where) as file:
        raw = file.read(MAX_MANIFEST + 1)
        body = load(raw, str(where))
    if not isinstance(body, dict) or body.pop("sha256", None) is None or dump_sealed(body) != raw:
        raise DamagedCheckpointError(f"{where} is damaged: its hash does not match.")
    for name, record in body["files"].items():
        path = folder / name
        with readable(path, DamagedCheckpointError(f"{path} is missing: incomplete checkpoint.")):
            if _record_of(path) != record:
                raise DamagedCheckpointError(f"{path} is damaged: it differs from {SEAL}.")


def _record_of(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    return {"size": size, "sha256": hash_prefix(path, size).hexdigest()}
