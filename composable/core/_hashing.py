"""Hashes of the first bytes of a file, which tell whether it is the file that was written."""

from hashlib import sha256
from pathlib import Path
from typing import Any

__all__ = ["hash_prefix"]

_CHUNK = 1 << 20


def hash_prefix(path: Path, size: int) -> Any:
    """Return the SHA-256 of the first `size` bytes of a file, or of all if there are fewer."""
    total = sha256()
    if path.exists():
        with path.open("rb") as file:
            while size > 0 and (chunk := file.read(min(size, _CHUNK))):
                total.update(chunk)
                size -= len(chunk)
    return total
