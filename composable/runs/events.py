"""The events of a run in `events.jsonl`: starts, ends, the clock and warnings.

Unlike `steps.jsonl`, the file holds what differs between two equal runs: times and causes. It is
only appended to. A run that resumes adds a start, whose batch replaces the later ones before it.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from composable._support.paths import open_to_write
from composable._support.secrets import redact
from composable.core.time import Timestamp
from composable.runs.shown_warnings import ShownWarnings

EVENTS = "events.jsonl"

_SHORTEST, _SHARE = 0.05, 500  # seconds between two times: 0.05, or 1/500 of the run so far
_MOST_WARNINGS = 1000
_LONGEST_TEXT = 2000


class EventLog:
    """Appends the events of a run to a file, when it is flushed.

    Args:
        folder: The run folder.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / EVENTS
        self._pending: list[dict[str, Any]] = []
        self._due = 0.0
        self._now = Timestamp()
        self._num_warnings = 0
        self._warnings = ShownWarnings(self._add_warning)

    def start(self, now: Timestamp) -> None:
        """Add the start of a fit, and record warnings from now on."""
        self._add("start", now)
        self._due = now.total_wct
        self._warnings.listen()

    def batch_end(self, now: Timestamp) -> None:
        """Add the time of a batch, if the last one is long ago."""
        self._now = now
        seconds = now.total_wct
        if seconds >= self._due:
            self._due = seconds + max(_SHORTEST, seconds / _SHARE)
            self._add("time", now)

    def end(self, now: Timestamp, error: BaseException | None) -> None:
        """Add the end of a fit, and the error that caused it."""
        text = None if error is None else redact(f"{type(error).__name__}: {error}"[:_LONGEST_TEXT])
        self._add("end", now, error=text)

    def close(self) -> None:
        """Stop recording warnings."""
        self._warnings.stop()

    def flush(self) -> None:
        """Append the pending events to the file.

        Raises:
            OSError: The file cannot be written.
        """
        if not self._pending:
            return
        raw = "".join(json.dumps(event) + "\n" for event in self._pending)
        with open_to_write(self.path, "ab") as file:
            if file.tell() and not _ends_with_newline(self.path):
                raw = f"\n{raw}"  # a killed process left part of a line
            file.write(raw.encode())
        self._pending = []

    def _add(self, event: str, now: Timestamp, **values: Any) -> None:
        self._now = now
        self._pending.append(
            {
                "event": event,
                "time": round(time.time(), 3),
                "epoch": now.epoch,
                "batch": now.batch,
                "sample": now.sample,
                "token": now.token,
                "seconds": round(now.total_wct, 4),
                **values,
            }
        )

    def _add_warning(self, category: str, message: str, where: str) -> None:
        self._num_warnings += 1
        if self._num_warnings <= _MOST_WARNINGS:
            text = redact(message[:_LONGEST_TEXT])
            self._add("warning", self._now, category=category, message=text, where=where)


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
