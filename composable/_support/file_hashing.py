"""Hashes of the first bytes of a file, which tell whether it is the file that was written."""

from hashlib import sha256
from pathlib import Path
from typing import Any

from composable._support.paths import open_regular

_CHUNK = 1 << 20


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
