"""The records in a run folder: how the run was started, and every step.

`run.json` has a record for each time that the run was started or resumed. `steps.jsonl` has a line
for each batch, and one for each evaluation. Numbers are exact: they are hexadecimal floats.
"""

import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from composable.checkpoint import _json
from composable.checkpoint._json import JSON
from composable.checkpoint.errors import (
    DamagedCheckpointError,
    MissingCheckpointError,
    UnreadableCheckpointError,
)

__all__ = [
    "RUN",
    "STEPS",
    "Steps",
    "add_record",
    "as_exact",
    "format_hex",
    "read_records",
    "read_steps",
    "rotate",
    "write_line",
]

RUN, STEPS = "run.json", "steps.jsonl"
_FORMAT = "composable run"
_MAX_RUN = 1 << 26
_MAX_LINE = 1 << 24
_MAX_BATCH = 2**53


# --- run.json ---


def add_record(folder: Path, record: Mapping[str, JSON]) -> None:
    """Add a record to `run.json`, atomically: the file is always complete.

    A file that can't be read is kept under another name.

    Raises:
        OSError: The file can't be written.
    """
    target = folder / RUN
    try:
        earlier = read_records(folder)
    except MissingCheckpointError:
        earlier = []
    except DamagedCheckpointError:
        rotate(target)
        earlier = []
    raw = _json.dump({"format": _FORMAT, "records": [*earlier, dict(record)]}, indent=1)
    partial = folder / f".{RUN}.{secrets.token_hex(8)}.partial"
    try:
        with partial.open("xb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def read_records(folder: Path) -> list[dict[str, JSON]]:
    """Read the records of a run folder, the oldest first.

    Raises:
        MissingCheckpointError: There is no such file.
        DamagedCheckpointError: The file is damaged.
        UnreadableCheckpointError: The file can't be read.
    """
    path = folder / RUN
    with _reading(path) as file:
        raw = file.read(_MAX_RUN + 1)
    if len(raw) > _MAX_RUN:
        raise DamagedCheckpointError(f"{path} has more than {_MAX_RUN} bytes.")
    body = _json.load(raw, str(path))
    records = body.get("records") if isinstance(body, dict) else None
    if not isinstance(records, list) or not records or body.get("format") != _FORMAT:
        raise DamagedCheckpointError(f"{path} is not the record of a run.")
    for record in records:
        if not isinstance(record, dict) or not _is_batch(record.get("batch")):
            raise DamagedCheckpointError(f"{path} has a record without a batch number.")
    return records


def rotate(path: Path) -> None:
    """Rename a file to a free name: steps.jsonl becomes steps.1.jsonl."""
    number = 1
    while os.path.lexists(free := path.with_name(f"{path.stem}.{number}{path.suffix}")):
        number += 1
    os.rename(path, free)


# --- steps.jsonl ---


@attrs.frozen
class Steps:
    """The contents of `steps.jsonl`."""

    trained: dict[int, dict[str, Any]]
    """By batch number, from 0: `loss`, learning rates, digests, and `skipped`."""
    evaluated: dict[int, dict[str, Any]]
    """By the number of the batch before the evaluation: its results."""


def as_exact(value: Any) -> Any:
    """Convert a number to a hexadecimal float; None, booleans and strings are kept."""
    if value is None or isinstance(value, (bool, str)):
        return value
    return float(value).hex()


def format_hex(value: Any) -> str:
    """Format a recorded value: `0x1.8p-1 (0.75)`."""
    try:
        number = float.fromhex(value)
    except (TypeError, ValueError, OverflowError):
        return str(value)[:80]
    return f"{value} ({number:.9g})" if math.isfinite(number) else str(value)


def write_line(batch: int, epoch: int, values: Mapping[str, Any]) -> bytes:
    """Encode a line of `steps.jsonl`."""
    exact = {name: as_exact(value) for name, value in values.items()}
    return _json.dump({"batch": batch, "epoch": epoch, **exact}) + b"\n"


def read_steps(folder: Path) -> Steps:
    """Read the steps of a run folder.

    An incomplete last line, of a run that was killed, is skipped.

    Raises:
        MissingCheckpointError: There is no such file.
        DamagedCheckpointError: A line is damaged; the message has its number.
        UnreadableCheckpointError: The file can't be read.
    """
    path = folder / STEPS
    steps = Steps({}, {})
    with _reading(path) as file:
        number = 0
        while raw := file.readline(_MAX_LINE + 1):
            number += 1
            if len(raw) > _MAX_LINE:
                raise DamagedCheckpointError(f"{path}, line {number}: it is too long.")
            if raw.endswith(b"\n"):
                _add_line(steps, raw, f"{path}, line {number}")
    return steps


def _add_line(steps: Steps, raw: bytes, where: str) -> None:
    line = _json.load(raw, where)
    if not isinstance(line, dict) or not _is_batch(line.get("batch")):
        raise DamagedCheckpointError(f"{where}: it has no batch number.")
    batch = line.pop("batch")
    line.pop("epoch", None)
    if "loss" not in line:
        steps.evaluated.setdefault(batch, {}).update(line)
    elif batch in steps.trained:
        raise DamagedCheckpointError(f"{where}: batch {batch} is a duplicate.")
    else:
        steps.trained[batch] = line


def _is_batch(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_BATCH


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    try:
        if not path.parent.is_dir():
            raise MissingCheckpointError(f"there is no folder {path.parent}.")
        with path.open("rb") as file:
            yield file
    except MissingCheckpointError:
        raise
    except FileNotFoundError:
        raise MissingCheckpointError(
            f"{path.parent} has no {path.name}: it is not the save_folder of a recorded run."
        ) from None
    except OSError as error:
        raise UnreadableCheckpointError(f"{path} can't be read: {error.strerror}.") from error
