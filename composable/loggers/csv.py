"""Write metrics to a CSV file."""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from composable._support.checks import check_flag
from composable._support.paths import check_no_link, is_stream_file, open_to_write, write_atomically
from composable.core.logger import Logger
from composable.core.state import State
from composable.core.time import Timestamp
from composable.loggers._back_end import BackEndLogger, LogTime
from composable.loggers._records import times_of
from composable.storage.folders import address, as_file, remote_at

_TIMES = tuple(times_of(Timestamp()))


class CSVLogger(BackEndLogger):
    """Writes metrics to a table with one row per record and one column per metric.

    The first columns are `epoch`, `batch`, `sample` and `seconds` (of training). A metric that
    comes later adds a column, for which the file is rewritten. A run that resumes from a
    checkpoint truncates the file to its rows at the time of the checkpoint.

    Args:
        path: The file; its folder is created. An existing file is an error by default, and a link
            always. A device or a pipe, such as "/dev/stdout", is appended to; a line of names
            follows when a metric comes later.
        flush_interval: Number of records to buffer, at least 1.
        overwrite: Replace an existing file.

    Example:
        >>> import tempfile, pathlib
        >>> from composable import Timestamp
        >>> from composable.loggers import CSVLogger
        >>> logger = CSVLogger(pathlib.Path(tempfile.mkdtemp(), "metrics.csv"))
        >>> logger.log_metrics({"loss": torch.tensor(0.5)}, Timestamp(batch=1))
        >>> logger.log_metrics({"loss": 0.25, "accuracy": 1.0}, Timestamp(batch=2))
        >>> logger.close()
        >>> print(logger.path.read_text().strip())
        epoch,batch,sample,seconds,loss,accuracy
        0,1,0,0.0,0.5,
        0,2,0,0.0,0.25,1.0
    """

    def __init__(
        self, path: str | Path, *, flush_interval: int = 100, overwrite: bool = False
    ) -> None:
        super().__init__(flush_interval=flush_interval)
        check_flag("overwrite", overwrite)
        self.path, self.overwrite = as_file("path", path), overwrite
        self._columns: list[str] = list(_TIMES)
        self._num_rows = 0
        self._file: IO[str] | None = None

    def fit_start(self, state: State, logger: Logger) -> None:
        """Open the file.

        Raises:
            FileExistsError: It exists, and `overwrite` is False; or its path is a link.
        """
        if self._writes:
            check_no_link(self.path)
        if self._writes and (remote := remote_at(self.path.parent)) is not None:
            remote.claim()
        replaces = self.overwrite or self._run is not None or is_stream_file(self.path)
        if self._writes and not replaces and self.path.exists() and not self._is_begun():
            raise FileExistsError(
                f"path={address(self.path)!r} exists; pass another path, or overwrite=True."
            )
        super().fit_start(state, logger)

    def _is_begun(self) -> bool:
        """Return whether the file has no rows yet, as of a process killed at its start."""
        return self.path.read_bytes() in (b"", (",".join(_TIMES) + "\n").encode())

    def _open(self, saved: Any) -> None:
        if saved is not None:
            self._columns, self._num_rows = list(saved["columns"]), saved["rows"]
        elif self._run is not None:
            return
        keeps = saved is not None and self.path.exists()
        rows = self._read()[: self._num_rows] if keeps else []
        self._num_rows = len(rows)
        self._rewrite(rows)

    def _read(self) -> list[dict[str, str]]:
        if is_stream_file(self.path):
            return []
        with self.path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def _rewrite(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
        if is_stream_file(self.path):
            if len(self._columns) > len(_TIMES):
                self._append(text.getvalue())
        else:
            self._release()  # what is open is replaced
            write_atomically(self.path, text.getvalue().encode())

    def _append(self, text: str) -> None:
        if self._file is None:
            self._file = open_to_write(self.path, "a", newline="", encoding="utf-8")
        self._file.write(text)
        self._file.flush()

    def _release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> None:
        """Write the queue, and close the file."""
        super().close()
        if (remote := remote_at(self.path.parent)) is not None:
            remote.finish()

    def _run_state(self) -> Any:
        return {"columns": list(self._columns), "rows": self._num_rows}

    def _flush(self) -> None:
        if self._file is not None and not is_stream_file(self.path):
            os.fsync(self._file.fileno())

    def _write_metrics(self, records: Sequence[tuple[LogTime, Mapping[str, Any]]]) -> None:
        rows = [{**times_of(moment.timestamp), **values} for moment, values in records]
        new = {name: None for row in rows for name in row if name not in self._columns}
        if new:
            self._columns += new
            self._rewrite(self._read())
        text = io.StringIO(newline="")
        csv.DictWriter(text, self._columns, lineterminator="\n").writerows(rows)
        self._append(text.getvalue())
        self._num_rows += len(rows)
