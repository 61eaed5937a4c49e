"""What a run folder says of a run besides its checkpoints: how it was begun, and every step.

`run.json` has a record for each time that the run was begun or went on. `steps.jsonl` has a line
for each batch, and one for each evaluation. Numbers are written as hexadecimal floats, exactly.
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
    "put_aside",
    "read_records",
    "read_steps",
    "shown",
    "write_line",
]

RUN, STEPS = "run.json", "steps.jsonl"
_FORMAT = "composable run"
_MAX_RUN = 1 << 26
_MAX_LINE = 1 << 24
_MAX_BATCH = 2**53


# --- how it was begun ---


def add_record(folder: Path, record: Mapping[str, JSON]) -> None:
    """Add a record to `run.json`, which is at every moment there whole, as it was or as it will be.

    What is there and can't be read is kept under another name.

    Raises:
        OSError: The system refuses.
    """
    target = folder / RUN
    try:
        earlier = read_records(folder)
    except MissingCheckpointError:
        earlier = []
    except DamagedCheckpointError:
        put_aside(target)
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
    """The records of a run folder, the oldest first.

    Raises:
        MissingCheckpointError: There is no such file.
        DamagedCheckpointError: It is not what was written.
        UnreadableCheckpointError: The system refuses.
    """
    path = folder / RUN
    with _reading(path) as file:
        raw = file.read(_MAX_RUN + 1)
    if len(raw) > _MAX_RUN:
        raise DamagedCheckpointError(f"{path} has more than {_MAX_RUN} bytes.")
    body = _json.load(raw, str(path))
    records = body.get("records") if isinstance(body, dict) else None
    if not isinstance(records, list) or not records or body.get("format") != _FORMAT:
        raise DamagedCheckpointError(f"{path} is no record of a run.")
    for record in records:
        if not isinstance(record, dict) or not _is_batch(record.get("batch")):
            raise DamagedCheckpointError(f"{path} has a record that says no batch.")
    return records


def put_aside(path: Path) -> None:
    """Give a file another name, one that is free: steps.jsonl becomes steps.1.jsonl."""
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.stem}.{number}{path.suffix}")):
        number += 1
    os.rename(path, aside)


# --- every step ---


@attrs.frozen
class Steps:
    """What `steps.jsonl` says."""

    trained: dict[int, dict[str, Any]]
    """By number of the batch, from 0: `loss`, learning rates and digests, and what was skipped."""
    evaluated: dict[int, dict[str, Any]]
    """By number of the batch after which it was: the results."""


def as_exact(value: Any) -> Any:
    """A number as a hexadecimal float; anything else as it is."""
    if value is None or isinstance(value, (bool, str)):
        return value
    return float(value).hex()


def shown(value: Any) -> str:
    """A recorded value for people: `0x1.8p-1 (0.75)`."""
    try:
        number = float.fromhex(value)
    except (TypeError, ValueError, OverflowError):
        return str(value)[:80]
    return f"{value} ({number:.9g})" if math.isfinite(number) else str(value)


def write_line(batch: int, epoch: int, values: Mapping[str, Any]) -> bytes:
    """A line of `steps.jsonl`."""
    exact = {name: as_exact(value) for name, value in values.items()}
    return _json.dump({"batch": batch, "epoch": epoch, **exact}) + b"\n"


def read_steps(folder: Path) -> Steps:
    """All lines of a run folder.

    The last line may be cut off, where the run was; it is passed over.

    Raises:
        MissingCheckpointError: There is no such file.
        DamagedCheckpointError: A line is not what was written. The error names it.
        UnreadableCheckpointError: The system refuses.
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
                _take_in(steps, raw, f"{path}, line {number}")
    return steps


def _take_in(steps: Steps, raw: bytes, where: str) -> None:
    line = _json.load(raw, where)
    if not isinstance(line, dict) or not _is_batch(line.get("batch")):
        raise DamagedCheckpointError(f"{where}: it has no number of a batch.")
    batch = line.pop("batch")
    line.pop("epoch", None)
    if "loss" not in line:
        steps.evaluated.setdefault(batch, {}).update(line)
    elif batch in steps.trained:
        raise DamagedCheckpointError(f"{where}: it has batch {batch} again.")
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
