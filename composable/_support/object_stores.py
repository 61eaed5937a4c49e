"""Files in object stores, which fsspec reads and writes, with retries and a check of each size."""

import atexit
import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from composable._support.checks import PathError, StorageError, as_path, is_url
from composable._support.hub import HubPlace
from composable._support.secrets import redact

T = TypeVar("T")

WAITS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""The seconds between the attempts of a transfer."""

OPEN: dict[Any, Any] = {}
"""The remote folders of this process, by their local folders."""

_EXTRAS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("abfs", "abfss", "az"), "azure"),
    "hf": "hub",
}
_SECRET = re.compile(r"[^/]*:/+[^/]*:[^/]*@|[^?]*\?|(s3a?|gc?s):/+[^/]*@")  # pathlib drops a slash
_IN_PARTS: dict[str, Any] = {"chunksize": 16 * 2**20, "max_concurrency": 4}
"""How files are sent to S3, since by default ten parts of 50 MiB are in memory at the same time."""
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class ObjectStore:
    """The files below a URL.

    Credentials and endpoints come from the environment, and from the configuration of fsspec.

    Args:
        name: The name of the argument, for errors.
        url: The URL of a folder or a file, such as "s3://bucket/runs/a".

    Raises:
        PathError: The URL names no folder, has credentials, or a scheme that is unknown or whose
            package is not installed.
    """

    def __init__(self, name: str, url: str) -> None:
        scheme = _check_url(name, url)
        import fsspec  # on use: it is slow to import

        options = {"auto_mkdir": True} if scheme in ("file", "local") else {}
        try:
            self.files, root = fsspec.url_to_fs(url, **options)
        except ImportError as error:
            advice = f': pip install "composable[{_EXTRAS[scheme]}]"' if scheme in _EXTRAS else ""
            raise PathError(
                f"{name}={url!r} needs a package for {scheme}:// ({error}){advice}."
            ) from None
        except ValueError:
            raise PathError(
                f"{name}={url!r} has an unknown scheme; use one of fsspec, such as s3://, gs://, "
                "az://, hf:// or file://, or a folder of this machine."
            ) from None
        self.patient = False
        """Whether missing permissions and buckets are waited for: credentials are renewed."""
        self.url, self.root = url.rstrip("/"), str(root).rstrip("/")
        if not self.root or (scheme in _EXTRAS and "/" not in self.root):
            place = self.url if self.root else f"{scheme}://bucket"
            raise PathError(f"{name}={url!r} names no folder; add one, as in {place}/run.")

    def __str__(self) -> str:
        return self.url

    def is_file(self) -> bool:
        """Return whether there is a file at the URL."""
        return bool(self._retried(lambda: self.files.isfile(self.root), "read", reads=True))

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return the size of each file in a folder, by its path below it."""
        root = self._at(folder)

        def find() -> dict[str, int]:
            self.files.invalidate_cache()
            found = self.files.find(root, detail=True)
            below = {path.removeprefix(root): value["size"] for path, value in found.items()}
            # A copy with one of the other names could be written anywhere.
            return {
                path[1:]: size
                for path, size in below.items()
                if {"", ".."}.isdisjoint(path.split("/")[1:])
            }

        try:
            return self._retried(find, "listed", reads=True)
        except FileNotFoundError:
            return {}

    def read(self, path: str) -> bytes:
        """Return the contents of a file."""
        return self._retried(lambda: bytes(self.files.cat_file(self._at(path))), "read", reads=True)

    def get(self, path: str, target: Path) -> None:
        """Copy a file to this machine, under a temporary name first."""
        partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}.partial")

        def get() -> None:
            source = self._at(path)
            self.files.get_file(source, str(partial))
            self.files.invalidate_cache()  # another process may write to it
            _check_size(path, partial.stat().st_size, self.files.info(source)["size"])

        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._retried(get, "read", reads=True)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    def put(self, source: Path, path: str) -> None:
        """Copy a file of this machine."""

        def put() -> None:
            size, target = source.stat().st_size, self._at(path)
            options = _IN_PARTS if "s3" in self.files.protocol else {}
            self.files.put_file(str(source), target, **options)
            self.files.invalidate_cache()
            written = self.files.info(target)["size"]
            if source.stat().st_size == size:  # otherwise it is a log, which has grown
                _check_size(path, written, size)

        self._retried(put, "written")

    def copy(self, path: str, target: str) -> None:
        """Copy a file within the store."""
        source, place = self._at(path), self._at(target)

        def copy() -> None:
            self.files.cp_file(source, place)
            self.files.invalidate_cache()
            _check_size(target, self.files.info(place)["size"], self.files.info(source)["size"])

        self._retried(copy, "written")

    def write(self, path: str, content: bytes) -> None:
        """Write a file."""
        self._retried(lambda: self.files.pipe_file(self._at(path), content), "written")

    def create(self, path: str, content: bytes) -> bool:
        """Write a file unless it exists, and return whether it has this content now.

        Most stores decide this in one step. With others, the last of two writers replaces it.
        """
        target = self._at(path)

        def create() -> bool:
            if not self.files.exists(target):
                try:
                    self.files.pipe_file(target, content, mode="create")
                except FileExistsError:
                    pass
                except (NotImplementedError, TypeError, ValueError):
                    self.files.pipe_file(target, content)
            return bytes(self.files.cat_file(target)) == content

        return self._retried(create, "written")

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files, one after the other; some may be missing."""

        def delete(path: str) -> None:
            with suppress(FileNotFoundError):
                self.files.rm_file(self._at(path))

        for path in paths:
            self._retried(partial(delete, path), "deleted")

    def _at(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def _retried(self, attempt: Callable[[], T], verb: str, *, reads: bool = False) -> T:
        """Return the result of a function, which is called again after errors that may pass.

        Args:
            attempt: The function.
            verb: What it does, for errors.
            reads: Whether it reads a file, which may be missing.

        Raises:
            FileNotFoundError: It reads a file that is missing.
            StorageError: The last attempt failed, or with an error that does not pass.
        """
        for wait in (*WAITS, None):
            try:
                return attempt()
            except Exception as error:  # of any of the libraries below fsspec
                if reads and isinstance(error, FileNotFoundError):
                    raise
                full = isinstance(error, OSError) and error.errno in _NO_SPACE
                denied = isinstance(error, (FileNotFoundError, PermissionError))
                if wait is None or full or (denied and not self.patient):
                    kind, why = type(error).__name__, redact(str(error))[:300]
                    raise StorageError(f"{self.url} cannot be {verb}: {kind}: {why}") from None
            time.sleep(wait)
        raise AssertionError  # the last wait is None


def cache() -> Path:
    """Return the folder of this library in the cache of the user, which is made.

    Raises:
        StorageError: It cannot be made.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "composable"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{folder} cannot be created for copies of what is at a URL: {error.strerror}. Set "
            "XDG_CACHE_HOME to a folder that can be written, or pass local_folder=."
        ) from None
    return folder


def as_local(
    name: str,
    value: Any,
    wanted: Callable[[Iterable[str]], Iterable[str]] = iter,
    into: str | None = None,
) -> Path:
    """Return a path of this machine: the given one, or of a copy of what is at a URL.

    The copy is deleted when the process ends, but for those in the cache of the hub.

    Args:
        name: The name of the argument, for errors.
        value: A path or a URL, of a file or a folder.
        wanted: Selects the paths of the files to copy.
        into: The name of the copy in the cache. Default: a new name.

    Raises:
        PathError: The URL names no folder, has an unknown scheme, or has credentials.
        FileNotFoundError: There is nothing at the URL.
        StorageError: It cannot be read.
    """
    if not is_url(value):
        return as_path(name, value)
    if place := HubPlace.parse(value):
        return place.copy(name)
    store = ObjectStore(name, value)
    sizes = store.sizes()
    if not sizes:
        raise FileNotFoundError(f"{name}={value!r} does not exist, or is empty.")
    folder = cache() / f"copy-{into or secrets.token_hex(8)}"
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = folder / store.root.rpartition("/")[2]
    if store.is_file():
        store.get("", target)
        return target
    target.mkdir(parents=True, exist_ok=True)
    for path in wanted(sizes):
        store.get(path, target / path)
    return target


def _check_url(name: str, url: str) -> str:
    """Return the scheme of a URL."""
    if _SECRET.match(str(url)):
        raise PathError(
            f"{name} is a URL with credentials in it, which logs and records would show; pass them "
            "in the environment, such as AWS_ACCESS_KEY_ID, or in the configuration of fsspec."
        )
    if not isinstance(url, str) or "://" not in url:
        raise PathError(
            f"{name}={str(url)!r} is neither a path of this machine nor a URL; pass a URL as a "
            "str, since pathlib removes a slash: 's3://bucket/run'."
        )
    if "::" in url:
        raise PathError(f"{name}={url!r} is a chain of file systems; pass one URL.")
    return url.partition("://")[0].lower()


def _check_size(path: str, found: int, expected: int) -> None:
    if found != expected:
        raise OSError(f"{path} has {found} bytes after its transfer, {expected} before it")
