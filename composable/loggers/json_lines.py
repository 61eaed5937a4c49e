"""Write metrics to a JSON Lines file."""

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, TypeAlias
from urllib.parse import quote

from torch import Tensor

from composable._support import strict_json
from composable._support.checks import check_count, check_flags
from composable._support.paths import (
    check_no_link,
    hash_prefix,
    is_stream_file,
    next_name,
    open_to_write,
    truncate,
    write_atomically,
)
from composable.core.callback import check_state
from composable.core.destination import LoggerDestination
from composable.core.logger import Columns, Logger, Rows, to_numbers
from composable.core.state import State
from composable.core.stateful import Count
from composable.core.time import Timestamp
from composable.distributed import Processes
from composable.loggers._histograms import Histogram
from composable.loggers._images import figure_png, png, to_pixels
from composable.loggers._records import plain_number, times_of
from composable.storage.folders import address, as_file, refresh, remote_at

# When it was logged, the metrics, and objects that JSON can represent.
_Record: TypeAlias = tuple[Timestamp, Mapping[str, Any], Mapping[str, Any]]


class JSONLinesLogger(LoggerDestination):
    """Appends metrics to a file, one JSON object per line.

    Every line has the fields `epoch`, `batch`, `sample` and `seconds` (of training), and the
    metrics. Lines are written every `flush_interval` records and at the end of `fit`, even after an
    error. NaN and infinity, which JSON does not support, are written as the strings "NaN",
    "Infinity" and "-Infinity". If a record cannot be encoded, the error is raised after the other
    records are written.

    Texts are values like metrics. A table is an object with `columns` and `rows`, a histogram one
    with `edges` and `counts`. Images and figures are PNG files in a folder beside the file,
    `metrics.files`, and their lines have the names of these files.

    A run that resumes from a checkpoint truncates the file to its length at the time of the
    checkpoint; later lines are logged again. This needs no argument. A file that does not begin
    with the lines that the run had written is never truncated. Of several processes, rank 0 writes.

    Args:
        path: The file; its folder is created. An existing file is an error by default, and a link
            always. A device or a pipe, such as "/dev/stdout", is appended to.
        flush_interval: Number of records to buffer, at least 1.
        overwrite: Replace an existing file.
        append: Append to an existing file.

    Raises:
        FileExistsError: In `fit`: the file exists, and `overwrite` and `append` are False; or the
            path is a link.
        ValueError: `flush_interval` is below 1, or `overwrite` and `append` are both True.

    Example:
        >>> import tempfile, pathlib
        >>> from composable import Timestamp
        >>> from composable.loggers import JSONLinesLogger
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> logger = JSONLinesLogger(folder / "metrics.jsonl")
        >>> logger.log_metrics({"loss": torch.tensor(0.5)}, Timestamp(batch=1))
        >>> logger.close()
        >>> print((folder / "metrics.jsonl").read_text().strip())
        {"epoch": 0, "batch": 1, "sample": 0, "seconds": 0.0, "loss": 0.5}
    """

    def __init__(
        self,
        path: str | Path,
        *,
        flush_interval: int = 100,
        overwrite: bool = False,
        append: bool = False,
    ) -> None:
        check_count("flush_interval", flush_interval, 1)
        check_flags(overwrite=overwrite, append=append)
        self.path = as_file("path", path)
        if overwrite and append:
            raise ValueError("overwrite=True and append=True are mutually exclusive; set only one.")
        self._overwrite, self._append = overwrite, append
        self._flush_interval = flush_interval
        self._pending: list[_Record] = []
        self._begun = self._resumed = False
        self._size, self._hash = 0, sha256()
        self._file: IO[bytes] | None = None

    def fit_start(self, state: State, logger: Logger) -> None:
        """Open the file.

        Raises:
            FileExistsError: It exists, and neither `overwrite` nor `append` is True.
        """
        if Processes.current().is_main:
            if (remote := remote_at(self.path.parent)) is not None:
                remote.claim()
            self._open()

    def _open(self) -> IO[bytes]:
        if not self._begun:
            self._begin()
            self._begun = True
        if self._file is None:
            self._file = open_to_write(self.path, "ab")
        return self._file

    def _begin(self) -> None:
        """Create the file, or truncate it to the lines that the run had written."""
        if is_stream_file(self.path):
            return  # there is nothing to truncate
        check_no_link(self.path)
        exists = self.path.exists()
        if self._resumed and exists:
            truncate(self.path, self._size)
            return
        exists = exists and self.path.stat().st_size > 0  # of a process killed at its start
        if exists and not (self._overwrite or self._append):
            raise FileExistsError(
                f"path={address(self.path)!r} exists; pass another path, append=True to append to "
                "it, or overwrite=True."
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self._append:
            open_to_write(self.path, "wb").close()
        self._size = self.path.stat().st_size if self._append and exists else 0
        self._hash = hash_prefix(self.path, self._size)

    def log_metrics(self, metrics: Mapping[str, Any], timestamp: Timestamp) -> None:
        """Buffer metrics, and write them if the buffer is full.

        Raises:
            ValueError: A metric has the name of a reserved field.
        """
        self._add(metrics, {}, timestamp)

    def _add(
        self, metrics: Mapping[str, Any], objects: Mapping[str, Any], timestamp: Timestamp
    ) -> None:
        if not (_FIELDS.isdisjoint(metrics) and _FIELDS.isdisjoint(objects)):
            reserved = sorted(_FIELDS & (metrics.keys() | objects.keys()))
            raise ValueError(
                f"metric name {reserved[0]!r} is reserved for a field of JSONLinesLogger: use "
                f"another name, such as 'metrics/{reserved[0]}'."
            )
        self._pending.append((timestamp, metrics, objects))
        if len(self._pending) >= self._flush_interval:
            self.flush()

    def log_text(self, texts: Mapping[str, str], timestamp: Timestamp) -> None:
        """Write texts, as values of a line."""
        self.log_metrics(texts, timestamp)

    def log_table(self, name: str, columns: Columns, rows: Rows, timestamp: Timestamp) -> None:
        """Write a table, as a value of a line."""
        cells = [[_as_json(value) for value in row] for row in rows]
        self._add({}, {name: {"columns": list(columns), "rows": cells}}, timestamp)

    def log_histograms(self, histograms: Mapping[str, Tensor], timestamp: Timestamp) -> None:
        """Write the edges and counts of bins, as values of a line."""
        counted = {name: Histogram.of(values).counted for name, values in histograms.items()}
        self._add({}, counted, timestamp)

    def log_images(self, images: Mapping[str, Tensor], timestamp: Timestamp) -> None:
        """Write images to PNG files, and their names to a line."""
        for name, some in images.items():
            files = [
                self._write_file(f"{name}-{i}", timestamp, png(pixels))
                for i, pixels in enumerate(to_pixels(some))
            ]
            self._add({}, {name: {"images": files}}, timestamp)

    def log_figure(self, name: str, figure: Any, timestamp: Timestamp) -> None:
        """Write a figure to a PNG file, and the name of the file to a line."""
        file = self._write_file(name, timestamp, figure_png(figure))
        self._add({}, {name: {"figure": file}}, timestamp)

    def _write_file(self, name: str, timestamp: Timestamp, content: bytes) -> str:
        path = self.path.with_suffix(".files") / f"{quote(name, safe='')}-ba{timestamp.batch}.png"
        if Processes.current().is_main:
            self._open()  # first, since the file may belong to another run
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, content)
        return f"{path.parent.name}/{path.name}"

    def flush(self) -> None:
        """Write the buffered records, on the process of rank 0."""
        if not Processes.current().is_main:
            self._pending = []
        if not self._pending:
            return
        file = self._open()
        lines, error = _lines(self._pending)
        self._pending = []  # cleared late, so that an interruption above loses no record
        raw = "".join(lines).encode()
        file.write(raw)
        file.flush()
        self._size += len(raw)
        self._hash.update(raw)
        if error is not None:
            raise error

    def state_dict(self) -> dict[str, Any]:
        """Write the buffered records, and return the length of the file and its hash."""
        self.flush()
        if self._file is not None and not is_stream_file(self.path):
            os.fsync(self._file.fileno())
        return {"bytes": self._size, "sha256": self._hash.hexdigest()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the length of the file, to which the next write truncates it.

        Raises:
            ValueError: The file does not begin with the lines that were written.
        """
        check_state(self, state, {"bytes": Count, "sha256": str})
        size, digest = state["bytes"], state["sha256"]
        refresh(self.path.parent)
        if is_stream_file(self.path):
            return
        has = self.path.stat().st_size if self.path.exists() else 0
        found = hash_prefix(self.path, size)
        if has < size or found.hexdigest() != digest:
            if self._overwrite:
                return  # the file is replaced
            fault = f"has {has} bytes, but had {size}" if has < size else "has other lines than"
            raise ValueError(
                f"{address(self.path)} {fault} when the checkpoint was saved: it is another "
                "file, or was truncated. Use the file of that run, or pass overwrite=True."
            )
        self.close_file()
        self._pending, self._begun, self._resumed = [], False, True
        self._size, self._hash = size, found

    def run_entries(self) -> Mapping[str, Any]:
        """Return the position in the file, and its path."""
        return {"metrics_files": self.state_dict(), "metrics_paths": address(self.path.absolute())}

    def continue_run(self, entries: Mapping[str, Any]) -> None:
        """Move the lines that the killed run wrote to a numbered file: `metrics.1.jsonl`."""
        with suppress(ValueError, AttributeError):  # another file, or one without such lines
            self.load_state_dict(entries.get("metrics_files"))  # type: ignore[arg-type]
            if self._resumed and self.path.exists() and self.path.stat().st_size > self._size:
                with self.path.open("rb") as file, open_to_write(next_name(self.path), "xb") as new:
                    file.seek(self._size)
                    shutil.copyfileobj(file, new)

    def close_file(self) -> None:
        """Close the file; the next write opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> None:
        """Write the buffered records and close the file; the next write opens it again."""
        try:
            self.flush()
        finally:
            self.close_file()
            if (remote := remote_at(self.path.parent)) is not None:
                remote.finish()


def _lines(records: Sequence[_Record]) -> tuple[list[str], Exception | None]:
    """Encode the records that can be encoded; return the first error of the others too."""
    try:
        numbers = to_numbers(metrics for _, metrics, _ in records)
        return [
            _encode({**times_of(when), **{n: _as_json(v) for n, v in metrics.items()}, **objects})
            + "\n"
            for (when, _, objects), metrics in zip(records, numbers, strict=True)
        ], None
    except Exception as error:
        if len(records) == 1:
            return [], error
    parts = [_lines([record]) for record in records]
    errors = [error for _, error in parts if error is not None]
    return [line for lines, _ in parts for line in lines], errors[0] if errors else None


_encode = json.JSONEncoder(allow_nan=False).encode  # json.dumps makes an encoder for each call
_FIELDS = times_of(Timestamp()).keys()


def _as_json(value: Any) -> Any:
    if type(value) is float and math.isfinite(value):
        return value  # the usual case; abstract classes are slow to test
    return strict_json.as_finite(plain_number(value))  # json supports no integers of NumPy
