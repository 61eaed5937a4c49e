"""Rows of tokens in memory-mapped files, in the format of llm.c and modded-nanogpt.

A file has a header of 256 integers of 32 bits (20240520, the version 1, the number of tokens, and
zeros), and then the tokens as integers of 16 bits: https://github.com/karpathy/llm.c
"""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from composable._support.checks import as_path, check_count, check_tensor, is_integer
from composable._support.paths import open_regular, open_to_write, replacing

_MAGIC, _VERSION = 20240520, 1
_HEADER = 1024
"""The bytes of the header."""
_VOCABULARY, _LARGEST = 2**16, 2**31 - 1
_CURE = (
    "Pass files of the format of llm.c with tokens of 16 bits, such as the files of FineWeb that "
    "modded-nanogpt downloads, or write your own with write_token_file."
)


class TokenFiles(Dataset[tuple[Tensor, Tensor]]):
    """A map-style dataset of rows of tokens, each with the tokens that follow.

    Row `i` of a file is its tokens from `i * length` on, and the target of a token is the next one.
    So a loader without `shuffle` reads the files as one stream, and a run resumes within a file.
    The tokens at the end of a file that don't fill a row are not used. Nothing is read until a row
    is: the files are mapped into memory, in each process on first use.

    Args:
        paths: The files, in the order of their rows.
        length: The number of tokens of a row, at least 1.
        rows: The number of rows that are used, from the first on. Default: all.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: There is no file, or one is not of this format, was cut short, or has no row; or
            there are fewer than `rows`.
        OSError: A file cannot be read.

    Example:
        >>> import tempfile
        >>> from composable.data import TokenFiles, write_token_file
        >>> path = write_token_file(f"{tempfile.mkdtemp()}/tokens.bin", torch.arange(8))
        >>> rows = TokenFiles([path], length=3)
        >>> len(rows), rows[1]
        (2, (tensor([3, 4, 5]), tensor([4, 5, 6])))
    """

    def __init__(
        self, paths: Sequence[str | PathLike[str]], length: int, rows: int | None = None
    ) -> None:
        check_count("length", length, 1)
        if isinstance(paths, str) or not isinstance(paths, Sequence):
            raise TypeError(
                f"paths={paths!r} must be a list of files, such as sorted(Path('data').glob('*'))."
            )
        if not paths:
            raise ValueError("paths=[] must have at least one file: look at the folder's name.")
        self.paths = [as_path(f"paths[{i}]", path) for i, path in enumerate(paths)]
        self.length = length
        self._counts = [_read_count(path, length) for path in self.paths]
        self._ends = list(accumulate((count - 1) // length for count in self._counts))
        self._rows = self._ends[-1] if rows is None else _at_most(rows, self._ends[-1], length)
        self._mapped: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        index = range(len(self))[index]  # -1 is the last row
        number = bisect_right(self._ends, index)
        begin = (index - ([0, *self._ends][number])) * self.length
        row = self._tokens(number)[begin : begin + self.length + 1].long()
        return row[:-1], row[1:]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_mapped": {}}  # a worker process maps the files itself

    def _tokens(self, number: int) -> Tensor:
        if number not in self._mapped:
            size = _HEADER // 2 + self._counts[number]
            self._mapped[number] = _map(self.paths[number], size, shared=False)[_HEADER // 2 :]
        return self._mapped[number]


def write_token_file(path: str | PathLike[str], tokens: Tensor) -> Path:
    """Write tokens to a file that `TokenFiles` reads.

    A reader finds the old file or the new one, never a part of it.

    Args:
        path: The file; its folder is created.
        tokens: The ids of the tokens, one-dimensional integers from 0 to 65,535.

    Returns:
        The path.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `tokens` is empty, has another shape or 2**31 ids or more, or an id is out of
            range.
        FileExistsError: The path is a link.

    Example:
        >>> import tempfile
        >>> from composable.data import write_token_file
        >>> path = write_token_file(f"{tempfile.mkdtemp()}/tokens.bin", torch.arange(8))
        >>> path.stat().st_size
        1040
    """
    path = as_path("path", path)
    _check_tokens(tokens)
    with replacing(path) as partial:
        with open_to_write(partial, "xb") as file:
            file.truncate(_HEADER + 2 * len(tokens))
        mapped = _map(partial, _HEADER // 2 + len(tokens), shared=True)
        header = torch.tensor([_MAGIC, _VERSION, len(tokens)], dtype=torch.int32)
        mapped[: _HEADER // 2].view(torch.int32)[: len(header)] = header
        mapped[_HEADER // 2 :] = tokens
    return path


def _at_most(rows: int, available: int, length: int) -> int:
    """Return the number of rows, if there are as many."""
    check_count("rows", rows, 1)
    if rows > available:
        raise ValueError(
            f"rows={rows} must be at most {available}, the rows of length={length} that paths has: "
            "pass more files, or fewer rows."
        )
    return rows


def _map(path: Path, size: int, *, shared: bool) -> Tensor:
    """Map a file as integers of 16 bits; unless it is shared, it is never written."""
    return torch.from_file(str(path), shared=shared, size=size, dtype=torch.uint16)


def _read_count(path: Path, length: int) -> int:
    """Return the number of tokens of a file.

    Raises:
        ValueError: It is not of this format, was cut short, or has no row.
    """
    with open_regular(path) as file:
        size, header = path.stat().st_size, file.read(12)
    if size < _HEADER:
        raise ValueError(
            f"{path} has {size} bytes, and the header alone has {_HEADER}: the file was cut short, "
            f"or is of another format. Download it again. {_CURE}"
        )
    magic, version, count = struct.unpack("<3i", header)
    if (magic, version) != (_MAGIC, _VERSION):
        raise ValueError(
            f"{path} begins with {magic} and the version {version}, and must begin with {_MAGIC} "
            f"and the version {_VERSION}. {_CURE}"
        )
    if size != _HEADER + 2 * count:
        raise ValueError(
            f"{path} must have {_HEADER + 2 * count} bytes: {count} tokens of 16 bits, by its "
            f"header, after {_HEADER} bytes. It has {size}: it was cut short, or its tokens have "
            f"another size. Download it again. {_CURE}"
        )
    if count <= length:
        raise ValueError(
            f"{path} has {count} tokens, and a row of length={length} takes {length + 1}: pass a "
            "smaller length, or omit the file."
        )
    return int(count)


def _check_tokens(tokens: Any) -> None:
    check_tensor("tokens", tokens)
    if not is_integer(tokens):
        raise TypeError(f"tokens must be integers, not {tokens.dtype}.")
    if tokens.ndim != 1 or not len(tokens):
        raise ValueError(
            f"tokens must have one dimension and at least one id, not the shape "
            f"{tuple(tokens.shape)}."
        )
    if len(tokens) > _LARGEST:
        raise ValueError(
            f"tokens has {len(tokens)} ids, and the header of a file counts at most {_LARGEST}: "
            "write several files, such as tokens.split(10**8)."
        )
    if tokens.dtype is not torch.uint16:
        low, high = (int(end) for end in tokens.aminmax())
        if low < 0 or high >= _VOCABULARY:
            raise ValueError(
                f"tokens has ids from {low} to {high}, which must be from 0 to {_VOCABULARY - 1}: "
                "16 bits hold no larger vocabulary."
            )
