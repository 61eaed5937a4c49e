"""Folders that arguments name: a path of this machine, or a URL."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from composable._support.checks import as_path, is_url
from composable._support.object_stores import OPEN, ObjectStore

if TYPE_CHECKING:
    from composable.storage.remote_folder import RemoteFolder


def as_folder(name: str, value: Any) -> Path:
    """Return a folder of this machine: for a URL, the local folder of a `RemoteFolder`.

    Raises:
        PathError: The URL names no folder, has an unknown scheme, or has credentials.
    """
    if not is_url(value):
        return as_path(name, value)
    from composable.storage.remote_folder import RemoteFolder  # on use: it is slow to import

    ObjectStore(name, value)  # raises errors that name the argument
    same = [one for one in OPEN.values() if one.url == str(value).rstrip("/")]
    return (same[0] if same else RemoteFolder(value)).folder


def as_file(name: str, value: Any) -> Path:
    """Return a file of this machine: for a URL, in the local folder of its folder."""
    if not is_url(value):
        return as_path(name, value)
    folder, _, file = str(value).rpartition("/")
    return as_folder(name, folder) / file


def remote_at(folder: Path | None) -> "RemoteFolder | None":
    """Return the remote folder whose local folder is given, or None."""
    return OPEN.get(folder)


def refresh(folder: Path) -> None:
    """Let the local folder of a URL have the logs there, once."""
    if folder in OPEN:
        OPEN[folder].ensure()


def address(path: Path) -> str:
    """Return the URL of a local folder or of a file in it, or its path, for errors and records."""
    if path.parent in OPEN:
        return f"{OPEN[path.parent].url}/{path.name}"
    return OPEN[path].url if path in OPEN else str(path)
