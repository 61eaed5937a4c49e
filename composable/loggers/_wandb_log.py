"""The local log of an offline run of Weights & Biases: which steps it has.

The format is LevelDB's: blocks of 32 KiB with records, each of a checksum (4 bytes), a length (2)
and a type (1): 1 is a whole record, 2 to 4 are the first, a middle and the last part of one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from composable._support import strict_json

_BLOCK = 32768
_HEADER = 7
_WHOLE, _LAST = 1, 4


class OfflineLog:
    """The steps that a log has, which another process may be writing.

    Args:
        path: The file; it may be missing yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = _HEADER  # the file begins with a header of this length
        self._steps: dict[str, int] = {}

    def read_new(self) -> dict[str, int]:
        """Return the last step of each name; only what was added since the last call is read."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._at)
                raw = file.read()
        except FileNotFoundError:
            return self._steps
        start = self._at
        for record, end in _records(raw, start):
            self._at = end
            row = _row(record)
            if row is not None:
                step, values = row
                self._steps.update(dict.fromkeys(values, step))
        return self._steps


def read_history(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each row of the history: its step and its values."""
    for record, _ in _records(path.read_bytes()[_HEADER:], _HEADER):
        row = _row(record)
        if row is not None:
            yield row


def _row(raw: bytes) -> tuple[int, dict[str, Any]] | None:
    """Return the step and the values of a record, if it is a row of the history."""
    from wandb.proto.wandb_internal_pb2 import Record

    record = Record()
    record.ParseFromString(raw)
    if record.WhichOneof("record_type") != "history":
        return None
    values: dict[str, Any] = {}
    for item in record.history.item:
        *parents, name = item.nested_key or [item.key]
        inner = values
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[name] = strict_json.load(item.value_json, "a row", nan=True)
    step = values.pop("_step", record.history.step.num)
    return step, {n: v for n, v in values.items() if not n.startswith("_")}


def _records(raw: bytes, start: int) -> Iterator[tuple[bytes, int]]:
    """Yield the complete records and their ends; the last one may be incomplete.

    Args:
        raw: The bytes of the file from a place where a record begins.
        start: That place.
    """
    at, parts = start, b""
    while at + _HEADER <= start + len(raw):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER:
            at += left
            continue
        head = raw[at - start : at - start + _HEADER]
        length, kind = int.from_bytes(head[4:6], "little"), head[6]
        end = at + _HEADER + length
        if kind == 0 or end > start + len(raw):
            return
        parts += raw[at - start + _HEADER : end - start]
        at = end
        if kind in (_WHOLE, _LAST):
            yield parts, end
            parts = b""
