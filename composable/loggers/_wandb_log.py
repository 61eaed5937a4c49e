"""The local log of an offline run of Weights & Biases: which steps it has.

The format is LevelDB's: blocks of 32 KiB with records, each of a checksum (4 bytes), a length (2)
and a type (1): 1 is a whole record, 2 to 4 are the first, a middle and the last part of one.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["last_steps", "read_history"]

_BLOCK = 32768
_HEADER = 7
_WHOLE, _LAST = 1, 4


def last_steps(path: Path) -> dict[str, int]:
    """Return the last step of each name that was logged."""
    found: dict[str, int] = {}
    for step, values in read_history(path):
        found.update(dict.fromkeys(values, step))
    return found


def read_history(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each row of the history: its step and its values."""
    from wandb.proto.wandb_internal_pb2 import Record

    for raw in _records(path.read_bytes()):
        record = Record()
        record.ParseFromString(raw)
        if record.WhichOneof("record_type") == "history":
            values: dict[str, Any] = {}
            for item in record.history.item:
                *parents, name = item.nested_key or [item.key]
                inner = values
                for parent in parents:
                    inner = inner.setdefault(parent, {})
                inner[name] = json.loads(item.value_json)
            step = values.pop("_step", record.history.step.num)
            yield step, {n: v for n, v in values.items() if not n.startswith("_")}


def _records(raw: bytes) -> Iterator[bytes]:
    """Yield the complete records; the process may have ended while it wrote the last one."""
    at, parts = _HEADER, b""  # the file begins with a header of the same length
    while at + _HEADER <= len(raw):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER:
            at += left
            continue
        length, kind = int.from_bytes(raw[at + 4 : at + 6], "little"), raw[at + 6]
        end = at + _HEADER + length
        if kind == 0 or end > len(raw):
            return
        parts += raw[at + _HEADER : end]
        at = end
        if kind in (_WHOLE, _LAST):
            yield parts
            parts = b""
