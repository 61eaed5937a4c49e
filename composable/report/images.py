"""The images of a run: files that a logger wrote."""

import base64
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import attrs

from composable._support.paths import open_regular

__all__ = ["Image", "find_images", "in_order"]

_KINDS = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".gif": "gif", ".webp": "webp"}
_MOST_FILES = 10_000


@attrs.frozen
class Image:
    """An image file, such as `samples-0-ba100.png`."""

    path: Path
    name: str
    """The name without the batch: `samples-0`."""
    batch: int | None
    bytes: int

    def as_url(self) -> str:
        """Return the image as a URL that contains it.

        Raises:
            OSError: The file cannot be read.
        """
        with open_regular(self.path) as file:
            raw = base64.b64encode(file.readall()).decode()
        return f"data:image/{_KINDS[self.path.suffix.lower()]};base64,{raw}"


def find_images(folders: Iterable[Path], problems: list[str]) -> list[Image]:
    """Find the images in some folders, sorted by name and batch. Links are not followed.

    Args:
        folders: The folders, which need not exist.
        problems: Receives a sentence if something cannot be read.
    """
    found = []
    for folder in folders:
        try:
            files = list(islice(_files(folder), _MOST_FILES))
            found += [_describe(path, path.relative_to(folder)) for path in files]
        except OSError as error:
            problems.append(f"{folder.name} cannot be read: {error.strerror}.")
    return sorted(found, key=lambda image: (in_order(image.name), image.batch or 0))


def _describe(path: Path, inside: Path) -> Image:
    name = unquote(inside.with_suffix("").as_posix())
    match = re.fullmatch(r"(.*?)-?ba([0-9]{1,15})", name, re.DOTALL)
    named, batch = (name, None) if match is None else (match[1], int(match[2]))
    return Image(path, named, batch, path.stat().st_size)


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_symlink() or not folder.is_dir():
        return
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        elif path.suffix.lower() in _KINDS and path.is_file() and not path.is_symlink():
            yield path


def in_order(name: str) -> list[Any]:
    """Return a key that sorts the numbers in names by value.

    Example:
        >>> from composable.report.images import in_order
        >>> sorted(["run-10", "run-2"], key=in_order)
        ['run-2', 'run-10']
    """
    parts = re.split(r"([0-9]+)", name)
    return [int(part) if number % 2 else part for number, part in enumerate(parts)]
