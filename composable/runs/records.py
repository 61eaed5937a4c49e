"""The record of a run next to its checkpoints: its configuration, and every step.

`run.json` has a record for each start and each resume of the run. `steps.jsonl` has a line for each
batch and each evaluation. Numbers are written as hexadecimal floats, which are exact.
"""

import io
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from composable._support import strict_json
from composable._support.paths import check_no_link, next_name, open_regular, write_atomically
from composable._support.strict_json import JSON
from composable.checkpoint.errors import DamagedCheckpointError, MissingCheckpointError
from composable.checkpoint.reader import readable
from composable.core.stateful import is_count

RUN, STEPS = "run.json", "steps.jsonl"
_FORMAT = "composable run"
_MAX_RUN = 1 << 26
_MAX_LINE = 1 << 24


# --- the configuration ---


def add_record(folder: Path, record: Mapping[str, JSON]) -> None:
    """Add a record to `run.json`, atomically.

    A file that cannot be parsed is kept under another name.

    Raises:
        OSError: The file cannot be written.
    """
    target = folder / RUN
    check_no_link(target)
    earlier = []
    try:
        earlier = read_records(folder)
    except MissingCheckpointError:
        pass  # this is the first record
    except DamagedCheckpointError:
        rotate_file(target)
    raw = strict_json.dump({"format": _FORMAT, "records": [*earlier, dict(record)]}, indent=1)
    write_atomically(target, raw)


def read_records(folder: Path) -> list[dict[str, JSON]]:
    """Read the records of a run folder, the oldest first.

    Raises:
        MissingCheckpointError: The file does not exist.
        DamagedCheckpointError: The file is not a valid record of a run.
        UnreadableCheckpointError: The file cannot be read.
    """
    path = folder / RUN
    with _reading(path) as file:
        raw = file.read(_MAX_RUN + 1)
        if len(raw) > _MAX_RUN:
            raise DamagedCheckpointError(f"{path} has more than the maximum of {_MAX_RUN} bytes.")
        body = strict_json.load(raw, str(path))
    records = body.get("records") if isinstance(body, dict) else None
    if not isinstance(records, list) or not records or body.get("format") != _FORMAT:
        raise DamagedCheckpointError(f"{path} is not the record of a run.")
    for record in records:
        if not isinstance(record, dict) or not is_count(record.get("batch")):
            raise DamagedCheckpointError(f"{path} has a record without a batch number.")
    return records


def rotate_file(path: Path) -> None:
    """Rename a file to the next free numbered name: steps.jsonl becomes steps.1.jsonl."""
    os.rename(path, next_name(path))


# --- every step ---


class Rows(Mapping[int, dict[str, Any]]):
    """The recorded values of each batch, in a third of the memory of as many dictionaries.

    Lines are kept as they were read, and parsed at each access.
    """

    def __init__(self) -> None:
        self._lines: dict[int, bytes] = {}

    def add(self, batch: int, line: bytes) -> None:
        """Add the line of a batch, which is valid."""
        self._lines[batch] = line

    def __getitem__(self, batch: int) -> dict[str, Any]:
        return _without_time(strict_json.load(self._lines[batch], STEPS))

    def __contains__(self, batch: object) -> bool:  # without parsing its line
        return batch in self._lines

    def __iter__(self) -> Iterator[int]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)


def _without_time(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in ("batch", "epoch")}


@attrs.frozen
class Steps:
    """The contents of `steps.jsonl`."""

    trained: Rows
    """By batch, from 0: `loss`, learning rates and digests, and whether it was skipped."""
    evaluated: dict[int, dict[str, Any]]
    """The evaluation results, by the last batch before the evaluation."""


def as_exact(value: Any) -> Any:
    """Convert a number to a hexadecimal float; return None, booleans and strings unchanged."""
    if value is None or isinstance(value, (bool, str)):
        return value
    return float(value).hex()


def format_hex(value: Any) -> str:
    """Format a recorded value with its decimal: `0x1.8p-1 (0.75)`."""
    try:
        number = float.fromhex(value)
    except (TypeError, ValueError, OverflowError):
        return str(value)[:80]
    return f"{value} ({number:.9g})" if math.isfinite(number) else str(value)


def write_line(batch: int, epoch: int, values: Mapping[str, Any]) -> bytes:
    """Encode a line of `steps.jsonl`."""
    exact = {name: as_exact(value) for name, value in values.items()}
    return strict_json.dump({"batch": batch, "epoch": epoch, **exact}) + b"\n"


def read_steps(folder: Path) -> Steps:
    """Read `steps.jsonl`.

    An incomplete last line, as an interrupted run may leave it, is ignored.

    Raises:
        MissingCheckpointError: The file does not exist.
        DamagedCheckpointError: A line is invalid. The error names it.
        UnreadableCheckpointError: The file cannot be read.
    """
    path = folder / STEPS
    steps = Steps(Rows(), {})
    with _reading(path) as file:
        number = 0
        while raw := file.readline(_MAX_LINE + 1):
            number += 1
            if len(raw) > _MAX_LINE:
                raise DamagedCheckpointError(f"{path}, line {number}: the line is too long.")
            if raw.endswith(b"\n"):
                _add_line(steps, raw, f"{path}, line {number}")
    return steps


def _add_line(steps: Steps, raw: bytes, where: str) -> None:
    line = strict_json.load(raw, where)
    if not isinstance(line, dict) or not is_count(line.get("batch")):
        raise DamagedCheckpointError(f"{where}: the batch number is missing.")
    batch = line["batch"]
    if "loss" not in line:
        steps.evaluated.setdefault(batch, {}).update(_without_time(line))
    elif batch in steps.trained:
        raise DamagedCheckpointError(f"{where}: batch {batch} is recorded twice.")
    else:
        steps.trained.add(batch, raw)


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    if not path.parent.is_dir():
        raise MissingCheckpointError(f"no directory {path.parent}.")
    missing = MissingCheckpointError(
        f"{path.parent} contains no {path.name}: it is not the save_folder of a recorded run."
    )
    with readable(path, missing), io.BufferedReader(open_regular(path)) as file:
        yield file
