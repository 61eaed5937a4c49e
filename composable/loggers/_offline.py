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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from composable._support import strict_json
from composable._support.paths import replacing
from composable.loggers._back_end import last_steps

_MESSAGES, _ABOUT = "messages.json", "experiment.json"
_BLOCK = 32768
_HEADER = 7  # bytes of a record, and of the file
_WHOLE, _LAST = 1, 4


# --- Comet


def comet_steps(path: Path) -> dict[str, int]:
    """Return the last step of each metric in an archive; of a broken one, none."""
    try:
        with zipfile.ZipFile(path) as archive:
            lines = archive.read(_MESSAGES).splitlines()
        messages = [strict_json.load(line, _MESSAGES, nan=True) for line in lines]
    except (zipfile.BadZipFile, KeyError, ValueError):  # its process ended while it was written
        return {}
    metrics = [message.get("payload", {}).get("metric") or {} for message in messages]
    stepped = [metric for metric in metrics if metric.get("step") is not None]
    return last_steps(*({one["metricName"]: one["step"]} for one in stepped))


def archive_killed(folder: Path, target: Path, about: Mapping[str, Any]) -> None:
    """Pack the folder of a killed process as the package does, without an incomplete last message.

    Args:
        folder: The temporary folder, which is kept. One without messages, or another folder of
            this machine, is not packed.
        target: The archive to write. An existing one stays.
        about: The identity of the experiment.
    """
    is_left = folder.parent == Path(tempfile.gettempdir()) and (folder / _MESSAGES).is_file()
    if target.exists() or not is_left:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    now = int(time.time() * 1000)
    whole = {**about, "start_time": now, "stop_time": now, "resume_strategy": "get_or_create"}
    messages = (folder / _MESSAGES).read_bytes()
    with replacing(target) as partial, zipfile.ZipFile(partial, "w") as packed:
        packed.writestr(_MESSAGES, messages[: messages.rfind(b"\n") + 1])
        packed.writestr(_ABOUT, json.dumps(whole))
        for path in sorted(folder.iterdir()):
            if path.is_file() and path.name not in (_MESSAGES, _ABOUT):
                packed.write(path, path.name)


# --- Weights & Biases


def wandb_steps(path: Path) -> dict[str, int]:
    """Return the last step of each name in the file of a run."""
    return last_steps(*map(_row_steps, wandb_records(path.read_bytes())))


def _row_steps(raw: bytes) -> dict[str, int]:
    """Return the step of each name of a record, if it is a row of the history."""
    from wandb.proto.wandb_internal_pb2 import Record

    record = Record.FromString(raw)
    if record.WhichOneof("record_type") != "history":
        return {}
    items = {(item.nested_key or [item.key])[0]: item for item in record.history.item}
    step = int(items["_step"].value_json) if "_step" in items else record.history.step.num
    return {name: step for name in items if not name.startswith("_")}


def wandb_records(raw: bytes) -> Iterator[bytes]:
    """Yield the complete records of a file; the last one may be incomplete."""
    at, parts = _HEADER, b""
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
