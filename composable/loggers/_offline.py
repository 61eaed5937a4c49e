"""What runs that are not online have on disk: which steps of each name.

A process of Comet writes messages to a file in a temporary folder, and packs the folder into an
archive when the experiment ends. The folder of a process that was killed stays.

Weights & Biases writes records in the format of LevelDB: blocks of 32 KiB with records, each of a
checksum (4 bytes), a length (2) and a type (1): 1 is a whole record, 2 to 4 are the first, a middle
and the last part of one.
"""

import json
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from composable._support import strict_json
from composable._support.paths import open_regular, replacing

_MESSAGES, _ABOUT = "messages.json", "experiment.json"
_BLOCK = 32768
_HEADER = 7  # bytes of a record, and of the file
_WHOLE, _LAST = 1, 4


class LocalLog:
    """The last step of each name in a file to which another thread or process appends.

    Args:
        path: The file; it may be missing yet.
    """

    _at = 0

    def __init__(self, path: Path) -> None:
        self.path = path
        self._steps: dict[str, int] = {}

    def read_new(self) -> dict[str, int]:
        """Return the last step of each name; only what was added since the last call is read."""
        if self.path.exists():
            with open_regular(self.path) as file:
                file.seek(self._at)
                self._add(file.readall())
        return self._steps

    def _add(self, raw: bytes) -> None:
        """Add the steps of the complete records, and advance `_at` to their end."""
        raise NotImplementedError


# --- Comet ---


class CometLog(LocalLog):
    """The messages of a running experiment.

    Args:
        folder: The temporary folder of the experiment.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / _MESSAGES)

    def _add(self, raw: bytes) -> None:
        whole = raw[: raw.rfind(b"\n") + 1]
        self._at += len(whole)
        _add_steps(self._steps, whole.splitlines())


def archived_steps(path: Path) -> dict[str, int]:
    """Return the last step of each metric in an archive; of a broken one, none."""
    steps: dict[str, int] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            _add_steps(steps, archive.read(_MESSAGES).splitlines())
    except (zipfile.BadZipFile, KeyError, ValueError):  # its process ended while it was written
        pass
    return steps


def _add_steps(steps: dict[str, int], lines: Iterable[bytes]) -> None:
    for line in lines:
        message = strict_json.load(line, _MESSAGES, nan=True)
        metric = message.get("payload", {}).get("metric") or {}
        if metric.get("step") is not None:
            name = metric["metricName"]
            steps[name] = max(metric["step"], steps.get(name, -1))


def is_left_over(folder: Path) -> bool:
    """Return whether a path is the temporary folder of an experiment that wrote no archive."""
    return folder.parent == Path(tempfile.gettempdir()) and (folder / _MESSAGES).is_file()


def archive(folder: Path, target: Path, about: Mapping[str, Any]) -> None:
    """Pack the folder of a killed process as the package does, without an incomplete last message.

    Args:
        folder: The temporary folder; it is kept.
        target: The archive to write.
        about: The identity of the experiment.
    """
    now = int(time.time() * 1000)
    whole = {**about, "start_time": now, "stop_time": now, "resume_strategy": "get_or_create"}
    messages = (folder / _MESSAGES).read_bytes()
    with replacing(target) as partial, zipfile.ZipFile(partial, "w") as packed:
        packed.writestr(_MESSAGES, messages[: messages.rfind(b"\n") + 1])
        packed.writestr(_ABOUT, json.dumps(whole))
        for path in sorted(folder.iterdir()):
            if path.is_file() and path.name not in (_MESSAGES, _ABOUT):
                packed.write(path, path.name)


# --- Weights & Biases ---


class WandBLog(LocalLog):
    """The history of an offline run."""

    _at = _HEADER

    def _add(self, raw: bytes) -> None:
        for record, end in _records(raw, self._at):
            self._at = end
            row = _row(record)
            if row is not None:
                step, values = row
                self._steps.update(dict.fromkeys(values, step))


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
