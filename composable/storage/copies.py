"""Copy runs and checkpoints from a URL to this machine."""

import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from composable._support import strict_json
from composable._support.checks import StorageError, check_count, is_url
from composable._support.hub import HubPlace
from composable._support.object_stores import ObjectStore, as_local, cache
from composable._support.paths import open_to_write, truncate
from composable._support.warn import warn_user
from composable.checkpoint.atomic import beside
from composable.checkpoint.errors import (
    BrokenCheckpointWarning,
    CheckpointExistsError,
    DamagedCheckpointError,
    UnwritableCheckpointError,
)
from composable.checkpoint.files import Found, delete, find, verify
from composable.checkpoint.manifest import MANIFEST, Manifest, is_part
from composable.checkpoint.reader import reading_from_store

_LATER = re.compile(r"(\.w[0-9]+)?(\.again)?$")
"""What the name of a checkpoint in a store ends with: its writer, and that it was saved again."""
LOGS = ".logs.json"
"""The list of the files of a run that are not in a checkpoint."""


def local(
    name: str,
    value: str | PathLike[str],
    checkpoints: str = "all",
    *,
    max_batch: int | None = None,
    into: str | None = None,
) -> Path:
    """Return a path of this machine: the given one, or one with a copy of what is at a URL.

    Args:
        name: The name of the argument, for errors.
        value: A path or a URL, of a file or a folder.
        checkpoints: What to copy of the checkpoints in a folder: "all"; the "latest" that is not
            damaged and can be resumed; the "newest", resumable or not; the "sizes" and manifests,
            of which `find` lists the copies, which are not readable; or "only sizes", and no logs.
        max_batch: The number of batches that the latest may not exceed.
        into: The name of the copy in the cache. Default: a new name.

    Raises:
        PathError: The URL is malformed, or its scheme is unknown.
        MissingCheckpointError: There is nothing at the URL.
        UnreadableCheckpointError: It cannot be read.
    """
    with reading_from_store():
        lists = checkpoints.endswith("sizes")
        if not is_url(value) or checkpoints == "all" or (HubPlace.parse(value) and not lists):
            return as_local(name, value)
        store = ObjectStore(name, str(value))
        sizes = store.sizes()
        if MANIFEST in sizes:
            return as_local(name, value, into=into)
        wanted = [] if checkpoints == "only sizes" else logs(store, sizes)
        target = as_local(name, value, lambda _: wanted, into)
        if lists:
            outline(store, sizes, target)
        elif target.is_dir():
            with tempfile.TemporaryDirectory(dir=cache()) as aside:
                outline(store, sizes, Path(aside))
                newest = checkpoints == "newest"
                whole = find(aside)[0] if newest else complete(Path(aside), max_batch)
                fetch_first(store, whole, target)
    return target


@contextmanager
def uploading(name: str, value: str | PathLike[str], *, overwrite: bool) -> Iterator[Path]:
    """Yield a path of this machine to write to, and copy the result to its URL, if it is one.

    Args:
        name: The name of the argument, for errors.
        value: A path or a URL, of a file or a folder.
        overwrite: Replace what is at the URL.

    Raises:
        CheckpointExistsError: There is something at the URL.
        UnwritableCheckpointError: It cannot be written.
    """
    if not is_url(value):
        yield as_local(name, value)
        return
    from composable.checkpoint.export import LIST as EXPORTED  # on use

    store = ObjectStore(name, str(value))
    try:
        before = store.sizes()
        known = store.read(EXPORTED).decode().split("\n") if EXPORTED in before else []
        if foreign := sorted(before.keys() - ({*known, ""} if overwrite else set(known))):
            advice = (
                f"has {foreign[0]!r}, which is not from export_weights: use another path."
                if foreign[0]
                else "exists; pass overwrite=True to replace it."
            )
            raise CheckpointExistsError(f"{value} {advice}")
        with tempfile.TemporaryDirectory(dir=cache()) as aside:
            target = Path(aside) / store.root.rpartition("/")[2]
            yield target
            files = [target] if target.is_file() else sorted(target.rglob("*"))
            new = {one.relative_to(target).as_posix(): one for one in files if one.is_file()}
            for path, file in new.items():
                store.put(file, "" if path == "." else path)
            if target.exists():
                store.delete(before.keys() - new.keys() - {""})
    except StorageError as error:
        raise UnwritableCheckpointError(str(error)) from None


def local_name(name: str) -> str:
    """Return the local name of a checkpoint in a store."""
    return _LATER.sub("", name)


def is_log(path: str) -> bool:
    """Return whether a path below a run folder is neither in a checkpoint nor hidden."""
    *folders, name = path.split("/")
    hidden = any(part.startswith(".") for part in (*folders, name))
    return not (hidden or path == "run.lock" or (folders and is_part(name)))


def logs(store: ObjectStore, sizes: Mapping[str, int]) -> list[str]:
    """Return the paths of the files that the runs in a folder have written beside checkpoints.

    Other files may be large, and are copied only if no checkpoint is there: another trainer's may.
    """
    lists = [path for path in sizes if path.rpartition("/")[2] == LOGS]
    if not lists and not any(path.endswith(f"/{MANIFEST}") for path in sizes):
        return list(filter(is_log, sizes))
    return [path for place in lists for path in listed_logs(store, sizes, place)]


def listed_logs(store: ObjectStore, sizes: Mapping[str, int], place: str = LOGS) -> list[str]:
    """Return the paths of the logs in a list, which may be missing."""
    paths = strict_json.load(store.read(place), place) if place in sizes else []
    return [path for path in map(place.removesuffix(LOGS).__add__, paths) if path in sizes]


def outline(store: ObjectStore, sizes: Mapping[str, int], folder: Path) -> None:
    """Copy the manifests of the checkpoints, and make empty files of the sizes of the others."""
    for path, size in sizes.items():
        name = path.rpartition("/")[2]
        if not is_part(name) or path.startswith("."):
            continue
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if name == MANIFEST:
            store.get(path, target)
        else:
            open_to_write(target, "xb").close()
            truncate(target, size)  # takes no space on the disk


def complete(folder: Path, max_batch: int | None = None) -> list[Found]:
    """Return the checkpoints of an outline from which a run may resume, the latest first."""
    return [
        found
        for found in find(folder)[0]
        if found.manifest.info.get("complete")
        and (max_batch is None or found.manifest.batch <= max_batch)
    ]


def fetch_first(store: ObjectStore, checkpoints: Iterable[Found], folder: Path) -> Found | None:
    """Copy the first checkpoint that is not damaged, and return it."""
    for found in checkpoints:
        try:
            fetch(store, found.path.name, folder / local_name(found.path.name))
        except DamagedCheckpointError as error:
            place = f"{store}/{found.path.name}"
            warn_user(
                f"{place} is skipped, because it is damaged: {error}", BrokenCheckpointWarning
            )
        else:
            return found
    return None


def fetch(store: ObjectStore, name: str, target: Path) -> None:
    """Copy a checkpoint, verify its hashes, and move it to its place.

    Raises:
        DamagedCheckpointError: A file was changed since it was written.
    """
    manifest = store.read(f"{name}/{MANIFEST}")
    if target.exists():
        if (target / MANIFEST).is_file() and (target / MANIFEST).read_bytes() == manifest:
            return
        shutil.rmtree(target)
    partial = beside(target, "partial")
    try:
        for path in filter(is_part, store.sizes(name)):
            store.get(f"{name}/{path}", partial / path)
        verify(partial)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def delete_checkpoint(store: ObjectStore, name: str, *, replaced: bool = False) -> bool:
    """Delete a checkpoint, its manifest first, and return whether it was deleted.

    One to which other files were added is not, unless it is replaced: then they are all that stays.
    """
    files = store.sizes(name)
    if not (replaced or all(map(is_part, files))):
        return False
    store.delete(f"{name}/{file}" for file in (MANIFEST, *filter(is_part, files)))
    return True


def prune(place: str, keep: int) -> list[str]:
    """Delete the checkpoints of a folder or a URL, but for the latest and the best of each run.

    Args:
        place: The folder or the URL.
        keep: The number of the latest checkpoints to keep, at least 1.

    Returns:
        The names of the deleted ones.
    """
    check_count("keep", keep, 1)
    folder = local("path", place, "only sizes")
    whole, runs = find(folder)[0], Counter[Any]()
    best = {(one.manifest.info.get("run"), best_of(one.manifest)) for one in whole}
    deleted = []
    for found in whole:
        run, name = found.manifest.info.get("run"), found.path.name
        runs[run] += 1
        if runs[run] <= keep or (run, local_name(name)) in best:
            continue
        if is_url(place):
            if not delete_checkpoint(ObjectStore("path", place), name):
                continue
        elif not delete(found.path, str(run)):
            continue
        deleted.append(name)
    return deleted


def best_of(manifest: Manifest) -> Any:
    """Return the name of the best checkpoint when another was saved, or None."""
    best = manifest.info.get("best")
    return best.get("checkpoint") if isinstance(best, dict) else None
