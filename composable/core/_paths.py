"""Names of files, and how they are opened."""

import errno
import os
import stat
from pathlib import Path
from typing import Any

__all__ = ["next_name", "open_regular"]


def open_regular(path: Path) -> Any:
    """Open a file to read its bytes, unbuffered.

    Raises:
        OSError: It cannot be opened, or is a pipe or a device, which may have no end.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    file = os.fdopen(os.open(path, flags), "rb", buffering=0)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def next_name(path: Path) -> Path:
    """Return the next free numbered name beside a file: steps.jsonl becomes steps.1.jsonl."""
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.stem}.{number}{path.suffix}")):
        number += 1
    return aside
