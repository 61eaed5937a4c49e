"""A folder in an object store, of which a run has a local copy.

A checkpoint is written to the local folder, as always. Then a thread copies it: the logs first,
then its files, then its manifest. So a checkpoint exists in the store if its manifest does, and the
logs have every row up to it. Old checkpoints are deleted after newer ones are complete, and their
manifest first.

A process that cannot see the folder of rank 0 uploads its part of a sharded checkpoint itself, to
`.parts`, and the thread of rank 0 copies it from there, within the store.

Writers are numbered. The first upload of a process creates `.writers/<number>.json`, which the
stores that can do it refuse if the file exists. A writer that finds a higher number stops. It may
notice this late, so no two write to the same folder: the second one's are named `<checkpoint>.w2`.
"""

import atexit
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

from composable._support import strict_json
from composable._support.checks import StorageError, as_path
from composable._support.object_stores import OPEN, ObjectStore, cache
from composable._support.paths import next_name, open_to_write, truncate, write_atomically
from composable._support.warn import warn_user
from composable.checkpoint.atomic import make_folder, remove_files, write_file
from composable.checkpoint.errors import (
    BrokenCheckpointWarning,
    CheckpointError,
    CheckpointExistsError,
    DamagedCheckpointError,
    MissingCheckpointError,
    TakenOverError,
    UnwritableCheckpointError,
)
from composable.checkpoint.files import delete, find, rename_damaged, verify
from composable.checkpoint.manifest import (
    MANIFEST,
    FileRecord,
    Manifest,
    is_part,
    parse_manifest,
)
from composable.checkpoint.reader import reading_from_store
from composable.checkpoint.safetensors import Write
from composable.storage.copies import (
    LOGS,
    best_of,
    complete,
    delete_checkpoint,
    fetch,
    fetch_first,
    is_log,
    listed_logs,
    local_name,
    outline,
)

_MARK = ".remote.json"
_RECORD = "run.json"
_WRITERS = ".writers/"
_PARTS = ".parts/"
_ATTEMPTS = 9


class RemoteFolder:
    """A folder in an object store, which the files of a run are copied to.

    Everything that takes a folder takes one, or its URL.

    Args:
        url: The URL, of a scheme that fsspec knows: "s3://bucket/runs/a".
        local_folder: Where the run works. Default: a folder in the cache of the user. Only what is
            not yet in the store is kept there, and the newest and the best checkpoint.

    Raises:
        PathError: The URL names no folder, has credentials, or a scheme that is unknown or whose
            package is not installed.

    Example:
        >>> from composable.storage import RemoteFolder
        >>> RemoteFolder("memory://runs/a", local_folder="/tmp/a").folder.as_posix()
        '/tmp/a'
    """

    def __init__(self, url: str, *, local_folder: str | Path | None = None) -> None:
        self.store = ObjectStore("url", url)
        self.url = self.store.url
        base = f"{self.url.rpartition('/')[2]}-{sha256(self.url.encode()).hexdigest()[:16]}"
        own = cache() / base if local_folder is None else as_path("local_folder", local_folder)
        self.folder = own.absolute()
        """The local folder."""
        self._number, self._refreshed = 0, False
        self._claim = b""
        self._run: str | None = None
        self._remote: dict[str, tuple[str, Manifest]] = {}
        """The names of complete checkpoints in the store, by their local names."""
        self._seen: set[str] = set()
        """The paths of the manifests that were in the store."""
        self._unused: set[str] = set()
        """The names of checkpoints in the store that are not complete, or were saved again."""
        self._logs: dict[str, tuple[int, int]] = {}
        """The size and the time of each log that was uploaded."""
        self._listed: set[str] = set()
        """The logs in the list in the store."""
        self._copies_logs = Lock()
        self._dropped: dict[str, str] = {}
        """The runs of the checkpoints to delete."""
        self._parts: dict[tuple[str, str, str], str] = {}
        """The paths in the store of files of other machines, by checkpoint, file and hash."""
        self.hollow: set[str] = set()
        """The names of local checkpoints with empty files for the files of other machines."""
        self._lock = Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None
        self._failure: BaseException | None = None
        self.fails = False
        """Whether the last upload failed, and the error was raised."""
        other = OPEN.setdefault(self.folder, self)
        if other.url != self.url:
            raise ValueError(
                f"local_folder={str(own)!r} belongs to {other.url} too; pass another one."
            )

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"RemoteFolder({self.url!r})"

    # --- from the store ---

    @property
    def writes(self) -> bool:
        """Whether this process copies to the store."""
        return bool(self._claim)

    def refresh(self, *, resume: bool, alone: bool = True) -> list[str]:
        """Let the local folder have the logs of the store, and the checkpoint to resume from.

        If this machine wrote to the store last, it has them already.

        Args:
            resume: Copy the latest checkpoint that is not damaged, and the best.
            alone: Whether no other machine has to read them.

        Returns:
            The names of these checkpoints in the store.
        """
        for _ in range(_ATTEMPTS):
            with suppress(MissingCheckpointError):  # a writer deletes what was just listed
                return self._refresh(resume=resume, alone=alone)
        return self._refresh(resume=resume, alone=alone)

    def _refresh(self, *, resume: bool, alone: bool) -> list[str]:
        with reading_from_store(), self.outline() as (sizes, aside):
            self._number, self._refreshed = max(map(_number, sizes), default=0), True
            current = self._prepare()
            alone = alone and not self.hollow
            self._delete_hollow()
            whole = find(aside)[0]
            self._remote = {
                local_name(one.path.name): (one.path.name, one.manifest) for one in whole[::-1]
            }
            kept = {name for name, _ in self._remote.values()}
            self._unused = {checkpoint.path.name for checkpoint in whole} - kept
            self._seen = _manifests(sizes)
            begun = {path.partition("/")[0] for path in sizes if is_part(path.partition("/")[2])}
            self._unused |= begun - {path.partition("/")[0] for path in self._seen}
            parts = [path.rpartition("/")[0] for path in sizes if path.startswith(_PARTS)]
            self._unused |= set(parts)
            self._listed = set(listed_logs(self.store, sizes))
            for path in () if current else sorted(self._listed):
                self.store.get(path, self.folder / path)
            if not resume or (current and alone and self._has_whole()):
                return []
            return self._fetch_latest(aside)

    def _fetch_latest(self, aside: Path) -> list[str]:
        """Copy the latest checkpoint of an outline, and the best; return their names."""
        chosen = fetch_first(self.store, complete(aside), self.folder)
        if chosen is None:
            return []
        names = [chosen.path.name]
        if (best := best_of(chosen.manifest)) in self._remote:
            names.append(self._remote[best][0])
            self.fetch(names)
        return names

    def share(self) -> list[str]:
        """Wait until everything is in the store, and let this machine have the latest and the best.

        Returns:
            The names of these checkpoints in the store, for other machines.
        """
        self.finish()
        self._delete_hollow()
        with self.outline() as (_, aside):
            return self._fetch_latest(aside)

    def _delete_hollow(self) -> None:
        for name in self.hollow:
            remove_files(self.folder / name)
        self.hollow.clear()

    def ensure(self) -> None:
        """Let the local folder have the logs of the store, once."""
        if not self._refreshed:
            self.refresh(resume=False)

    def _has_whole(self) -> bool:
        """Return whether a local checkpoint can be resumed; rename damaged ones before it."""
        for found in complete(self.folder):
            try:
                verify(found.path)
            except DamagedCheckpointError as error:
                aside = rename_damaged(found.path)
                warn_user(f"{error}; it was renamed to {aside}.", BrokenCheckpointWarning)
            else:
                return True
        return False

    def fetch(self, names: list[str]) -> None:
        """Copy checkpoints of the store to the local folder, unless it has them."""
        with reading_from_store():
            for name in names:
                fetch(self.store, name, self.folder / local_name(name))

    @contextmanager
    def outline(self) -> Iterator[tuple[dict[str, int], Path]]:
        """Yield the sizes of the files in the store, and a folder with the manifests."""
        with TemporaryDirectory(dir=cache()) as aside, reading_from_store():
            sizes = self.store.sizes()
            outline(self.store, sizes, Path(aside))
            yield sizes, Path(aside)

    def _prepare(self) -> bool:
        """Return whether this machine wrote last; otherwise, make the local folder empty."""
        mark, folder = self.folder / _MARK, self.folder
        make_folder(folder)
        seen = strict_json.load(mark.read_bytes(), str(mark)) if mark.is_file() else {"url": ""}
        if seen["url"] == self.url:
            self.hollow = set(seen["hollow"])
            if seen["wrote"] and seen["number"] == self._number:
                return True
            self._claim = b""
            if seen["number"] != self._number:
                aside = next_name(folder.with_name(f"{folder.name}.superseded"))
                folder.rename(aside)
                warn_user(
                    f"{self.url} has changed since this machine used it; what was in {folder} "
                    f"was moved to {aside}.",
                    UserWarning,
                )
                make_folder(folder)
        elif any(path.name != "run.lock" for path in folder.iterdir()):
            what = f"belongs to {seen['url']}" if seen["url"] else "has other files"
            raise CheckpointExistsError(
                f"local_folder={str(folder)!r} {what}; pass a new or an empty folder."
            )
        self._write_mark(wrote=False)
        return False

    def _write_mark(self, *, wrote: bool) -> None:
        mark = {"url": self.url, "number": self._number, "wrote": wrote}
        mark["hollow"] = sorted(self.hollow)
        write_atomically(self.folder / _MARK, json.dumps(mark).encode())

    # --- to the store ---

    def claim(self, run: str | None = None, *, takes_over: bool = True) -> None:
        """Become the writer of the folder; earlier ones stop at their next upload.

        Args:
            run: The id of the run.
            takes_over: Whether another run may be replaced.

        Raises:
            TakenOverError: Another run has begun in the folder, or another process since this one
                has read it.
            UnwritableCheckpointError: The store cannot be written.
        """
        self._run = run or self._run
        if self._claim:
            return
        try:
            self.ensure()
            earlier = self._writer(self._number)
            if not takes_over and earlier and earlier["run"] not in (None, self._run):
                raise TakenOverError(
                    f"{self.url} is in use: the run {earlier['run']} began in it on "
                    f"{earlier['host']}; pass autoresume=True to continue that run, "
                    "save_overwrite=True to replace it, or another folder."
                )
            own = {"run": self._run, "host": socket.gethostname(), "time": time.time()}
            claim = json.dumps({**own, "token": token_hex(8)}).encode()
            number = self._number + 1
            if not self.store.create(_writer_path(number), claim):
                raise self._taken_over()
            if later := _manifests(self.store.sizes()) - self._seen:
                raise TakenOverError(
                    f"{self.url} has {min(later)}, which another process saved after this one had "
                    "read the folder; start this one again, and it continues from there."
                )
            if earlier:
                self.store.delete([_writer_path(self._number)])
        except StorageError as error:
            raise UnwritableCheckpointError(str(error)) from None
        self._number, self._claim, self.store.patient = number, claim, True
        atexit.register(self._warn_at_exit)
        self._write_mark(wrote=True)

    def _writer(self, number: int) -> dict[str, Any] | None:
        try:
            return dict(strict_json.load(self.store.read(_writer_path(number)), self.url))
        except FileNotFoundError:
            return None

    def _check_writer(self) -> None:
        own = _writer_path(self._number)
        try:
            if self._newest_writer() > self._number or self.store.read(own) != self._claim:
                raise self._taken_over()
        except FileNotFoundError as error:
            if self._newest_writer() > self._number:  # it began in between
                raise self._taken_over() from None
            raise StorageError(f"{self.url} cannot be written: {own} is gone: {error}") from None

    def _newest_writer(self) -> int:
        paths = self.store.sizes(_WRITERS[:-1])
        return max((_number(_WRITERS + path) for path in paths), default=0)

    def _taken_over(self) -> TakenOverError:
        return TakenOverError(
            f"another process writes to {self.url} now, so this one stops. What it has saved is in "
            f"{self.folder}."
        )

    def push(self, kept: Iterable[str] = ()) -> None:
        """Let the thread copy everything that is new.

        Args:
            kept: The names of the checkpoints to keep, also if one of the same name was dropped.

        Raises:
            TakenOverError: Another process writes to the folder.
            UnwritableCheckpointError: An earlier upload failed.
        """
        for name in kept:
            self._dropped.pop(name, None)
        self._raise_failure()
        self._submit()

    def _submit(self) -> None:
        with self._lock:
            last = self._last
            if last is None or last.running() or last.done():
                self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="upload")
                self._last = self._thread.submit(self._run_uploads)

    def _run_uploads(self) -> None:
        try:
            self._upload_all()
            self._failure = None
        except BaseException as error:
            self._failure = error

    def _raise_failure(self) -> None:
        error, self._failure = self._failure, None
        self.fails = error is not None
        if isinstance(error, FileNotFoundError):
            raise UnwritableCheckpointError(f"{self.url} has vanished: {error}") from None
        if isinstance(error, OSError) and not isinstance(error, CheckpointError):
            raise UnwritableCheckpointError(str(error)) from None
        if isinstance(error, TakenOverError):
            self._claim = b""  # it stops: nothing is copied at its end
        if error is not None:
            raise error

    def drop(self, name: str, run: str) -> None:
        """Delete a checkpoint of a run, here and in the store, after newer ones are complete."""
        self._dropped[name] = run

    def dropped(self) -> list[str]:
        """Return the names of the checkpoints that are to be deleted, and are not yet."""
        return list(self._dropped)

    def put_part(self, folder: str, file: str, content: Callable[[Write], object]) -> FileRecord:
        """Write a file of a checkpoint to the store, as this machine does not have its folder.

        Args:
            folder: The name of the temporary folder that rank 0 writes to.
            file: The name of the file.
            content: Writes it.
        """
        make_folder(self.folder)
        with TemporaryDirectory(dir=self.folder, prefix=".") as aside:
            record = write_file(Path(aside, file), content)
            self.store.put(Path(aside, file), f"{_PARTS}{folder}/{file}")
        return record

    def expect_parts(self, name: str, folder: Path, records: Mapping[str, FileRecord]) -> None:
        """Let files that other machines have put in the store be copied with a checkpoint.

        Args:
            name: The name of the checkpoint.
            folder: Its temporary folder, which gets empty files of the same sizes.
            records: The sizes and hashes of the files.
        """
        for file, record in records.items():
            self._parts[name, file, record.sha256] = f"{_PARTS}{folder.name}/{file}"
            open_to_write(folder / file, "xb").close()
            truncate(folder / file, record.size)  # takes no space on the disk
        self.hollow.add(name)
        self._write_mark(wrote=self.writes)

    def finish(self) -> None:
        """Wait until everything is in the store.

        Raises:
            TakenOverError: Another process writes to the folder.
            UnwritableCheckpointError: An upload failed.
        """
        if not self._claim:
            return
        self._submit()
        self._last.result()  # type: ignore[union-attr]  # it was submitted
        self._raise_failure()

    # --- in the thread ---

    def _upload_all(self) -> None:
        dropped = self._dropped.copy()  # one that is dropped later may be the newest in the store
        for name in dropped.keys() - self._remote.keys():  # replaced before their upload
            if (run := self._dropped.pop(name, None)) is not None:
                delete(self.folder / name, run)
                self._forget_parts(key for key in list(self._parts) if key[0] == name)
        self.claim()  # again, if the store failed at the start
        self._check_writer()
        for found in find(self.folder)[0][::-1]:
            name = found.path.name
            if name not in dropped and self._known(name) != found.manifest:
                _upload_logs()
                self._upload(found.path)
        _upload_logs()
        for name in dropped.keys() & self._remote.keys():
            if (run := self._dropped.pop(name, None)) is None:
                continue
            place, manifest = self._remote.pop(name)
            if manifest.info.get("run") == run:
                delete_checkpoint(self.store, place)
            delete(self.folder / name, run)
        while self._unused:
            delete_checkpoint(self.store, self._unused.pop())
        self._prune()

    def _known(self, name: str) -> Manifest | None:
        return self._remote[name][1] if name in self._remote else None

    def _upload(self, path: Path) -> None:
        """Copy a checkpoint, next to an earlier one of its name, which is deleted then."""
        before, raw = self._remote.get(path.name), b""
        target = path.name + (f".w{self._number}" if self._number > 1 else "")
        target += ".again" if before and before[0] == target else ""
        while raw != (path / MANIFEST).read_bytes():  # it may be replaced in the meantime
            raw = (path / MANIFEST).read_bytes()
            manifest = parse_manifest(bytearray(raw), str(path))
            parts = {file: (path.name, file, one.sha256) for file, one in manifest.files.items()}
            for file, part in parts.items():
                if part in self._parts:
                    self.store.copy(self._parts[part], f"{target}/{file}")
                else:
                    self.store.put(path / file, f"{target}/{file}")
        self._check_writer()
        self.store.write(f"{target}/{MANIFEST}", raw)
        self._remote[path.name] = target, manifest
        self._forget_parts(parts.values())
        if before:
            delete_checkpoint(self.store, before[0], replaced=True)

    def _forget_parts(self, parts: Iterable[tuple[str, str, str]]) -> None:
        for part in parts:
            if path := self._parts.pop(part, None):
                self._unused.add(path.rpartition("/")[0])

    def upload_logs(self) -> None:
        """Copy the files that are not in checkpoints, if they have changed."""
        with self._copies_logs:  # two threads may: an old copy must not replace a newer one
            for file, path in self._local_logs():
                if self._logs.get(path) == (stamp := _stamp(file)):
                    continue
                self._check_writer()  # each time: this process may be stopped in between
                if path not in self._listed:
                    self.store.write(LOGS, json.dumps([*self._listed, path]).encode())
                    self._listed.add(path)
                self.store.put(file, path)
                self._logs[path] = stamp

    def _local_logs(self) -> Iterator[tuple[Path, str]]:
        """Yield the files that are not in checkpoints, and their paths below the folder."""
        for root, folders, names in os.walk(self.folder):
            folders[:] = [name for name in folders if not name.startswith(".")]  # may vanish
            for name in sorted(names, key=lambda name: name != _RECORD):
                file = Path(root, name)
                path = file.relative_to(self.folder).as_posix()
                if is_log(path) and file.is_file() and not file.is_symlink():
                    yield file, path

    def _prune(self) -> None:
        """Delete the local checkpoints that are in the store, but for the newest and the best."""
        whole = find(self.folder)[0]
        newest = [*[one for one in whole if one.manifest.info.get("complete")], *whole][:1]
        kept = (
            {whole[0].path.name, newest[0].path.name, best_of(newest[0].manifest)} if whole else {}
        )
        for found in whole:
            if found.path.name not in kept and self._known(found.path.name) == found.manifest:
                delete(found.path, str(found.manifest.info.get("run")))

    def _warn_at_exit(self) -> None:
        """Warn of a failure of the last upload."""
        if self._failure is not None:
            warn_user(
                f"not all of {self.folder} was copied to {self.url}: {self._failure}.",
                UserWarning,
            )


def _upload_logs() -> None:
    """Copy the logs of all folders of this process, as a checkpoint counts their rows."""
    # The record of the run first: without it, a run without a checkpoint can't be continued.
    for one in sorted(OPEN.values(), key=lambda one: not (one.folder / _RECORD).exists()):
        if one.writes:
            one.upload_logs()


def _stamp(file: Path) -> tuple[int, int]:
    now = file.stat()
    return now.st_size, now.st_mtime_ns


def _manifests(paths: Iterable[str]) -> set[str]:
    """Return the paths of the manifests of checkpoints."""
    return {path for path in paths if re.fullmatch(rf"[^./][^/]*/{MANIFEST}", path)}


def _writer_path(number: int) -> str:
    return f"{_WRITERS}{number:08d}.json"


def _number(path: str) -> int:
    """Return the number of a writer, or 0 for another file."""
    name = path.removeprefix(_WRITERS).removesuffix(".json")
    return int(name) if path.startswith(_WRITERS) and name.isdecimal() else 0
