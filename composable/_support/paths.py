"""Names of files, and how they are opened: every file that a run writes is opened here.

Folders may be links. A link in the last place of a path is refused, because its target may be
anything. Devices, pipes and descriptors such as /dev/stdout are written to, and never replaced.
"""

import errno
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_MOST_LINKS = 40
_CHUNK = 1 << 20


def open_regular(path: Path) -> Any:
    """Open a file to read its bytes, unbuffered.

    Raises:
        OSError: It cannot be opened, or is a folder, or a pipe or a device, which may have no end.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb", buffering=0)


def hash_prefix(path: Path, size: int) -> Any:
    """Return the SHA-256 of the first `size` bytes of a file, or of all if there are fewer.

    Raises:
        OSError: It cannot be read, or is a pipe or a device.
    """
    total = sha256()
    if path.exists():
        with open_regular(path) as file:
            while size > 0 and (chunk := file.read(min(size, _CHUNK))):
                total.update(chunk)
                size -= len(chunk)
    return total


def next_name(path: Path) -> Path:
    """Return a path if it is free, or the next numbered one: steps.jsonl becomes steps.1.jsonl."""
    number, free = 0, path
    while os.path.lexists(free):
        number += 1
        free = path.with_name(f"{path.stem}.{number}{path.suffix}")
    return free


# --- writing ---


def open_to_write(path: Path, mode: str, **options: Any) -> Any:
    """Open a file as `open` does, unless its path is a link.

    Args:
        path: The file. A device, a pipe or a descriptor is opened to append, whatever the mode.
        mode: "x" to create, "w" to replace, "a" to append, "r+" to change; with "b" for bytes.
        options: Further arguments of `open`.

    Raises:
        FileExistsError: The path is a link, or exists and the mode is "x".
        OSError: The file cannot be opened.
    """
    if is_stream_file(path):
        kind = "wb" if "b" in mode else "w"
        return open(_source(path), kind, **options)  # noqa: PTH123 (may be a descriptor)
    check_no_link(path)
    return open(path, mode, opener=_open_no_link, **options)


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | _NO_LINK, 0o666)


def create_descriptor(path: Path) -> int:
    """Create a file, and return its descriptor.

    Raises:
        FileExistsError: The path exists.
        OSError: The file cannot be created.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | getattr(os, "O_BINARY", 0)
    return os.open(path, flags, 0o666)


def truncate(path: Path, size: int) -> None:
    """Cut a file to its first bytes.

    Raises:
        FileExistsError: The path is a link.
        OSError: The file cannot be changed.
    """
    with open_to_write(path, "r+b") as file:
        file.truncate(size)


def write_atomically(path: Path, content: bytes) -> Path:
    """Write a file under a temporary name, then rename it; a device is written to.

    Returns:
        The path.

    Raises:
        FileExistsError: The path is a link.
        OSError: The file cannot be written.
    """
    if is_stream_file(path):
        with open_to_write(path, "wb") as file:
            file.write(content)
        return path
    check_no_link(path)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with open_to_write(partial, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Write a file under a temporary path, and rename it to its target if no error is raised.

    Files that are written next to it, such as the weights of a large ONNX model, are renamed first.
    A reader finds the old file or the new one, never a part of it. A device is written to.

    Args:
        target: The file; its folder is created.

    Raises:
        FileExistsError: The target is a link.
    """
    check_no_link(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    name = target.name
    # A device stands in a folder in which nothing else may be created.
    beside = None if is_stream_file(target) else target.parent
    folder = Path(tempfile.mkdtemp(".partial", f".{name}.", beside))
    try:
        yield folder / name
        written = sorted(folder.iterdir(), key=lambda file: file.name == name)
        if is_stream_file(target):
            write_atomically(target, (folder / name).read_bytes())
            return
        for file in written:
            check_no_link(target.parent / file.name)
        for file in written:
            with file.open("rb") as content:
                os.fsync(content.fileno())
            file.replace(target.parent / file.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_no_link(path: Path) -> None:
    """Check that a path is not a link to a file or to nothing.

    Raises:
        FileExistsError: It is. The message names both ends.
    """
    if path.is_symlink() and not is_stream_file(path):
        raise FileExistsError(
            f"{path} is a link to {path.readlink()}, and no file is written through a link: "
            "remove the link, or use the path to which it points."
        )


def is_stream_file(path: Path) -> bool:
    """Return whether a path is a device, a pipe, or a descriptor such as /dev/stdout."""
    if _descriptor(path) is not None:
        return True
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _source(path: Path) -> int | Path:
    """Return a path, or a copy of the descriptor that it stands for, with its position."""
    descriptor = _descriptor(path)
    return path if descriptor is None else os.dup(descriptor)


def _descriptor(path: Path) -> int | None:
    """Return the descriptor of this process that a path leads to, or None."""
    own = Path(f"/proc/{os.getpid()}/fd")
    at = path.absolute()
    for _ in range(_MOST_LINKS):
        folder = at.parent.resolve()
        if folder == own and at.name.isdigit():
            return int(at.name)
        if not at.is_symlink():
            return None
        at = folder / at.readlink()
    return None
