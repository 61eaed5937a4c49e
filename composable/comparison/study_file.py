"""Write a study to a JSON file, and read it."""

import json
import math
import reprlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from composable.comparison.encoding import InvalidRecordError, decode, encode
from composable.comparison.records import Protocol, StepCost, Study, TrialResult
from composable.core import _json
from composable.core._paths import write_atomically
from composable.core.time import Time
from composable.functional._checks import as_path

__all__ = ["format_study", "parse_study", "read_study", "write_study"]

_FORMAT = "composable study"
_VERSION = 1


def write_study(study: Study, path: str | Path) -> Path:
    """Write a study to a JSON file, atomically; an existing file is replaced.

    Args:
        study: The study.
        path: The file; its folder must exist.

    Returns:
        The path.

    Raises:
        InvalidRecordError: A value cannot be written as JSON, or contradicts another one.
        OSError: The file cannot be written.
    """
    return write_atomically(as_path("path", path), format_study(study).encode())


def read_study(path: str | Path) -> Study:
    """Read a study from the JSON file that `write_study` wrote.

    Args:
        path: The file.

    Raises:
        InvalidRecordError: The file is not a study, or a value in it is invalid; the message gives
            the path of the field.
        OSError: The file cannot be read.
    """
    file = as_path("path", path)
    return _parse(lambda: _json.read(file), file.name)


def format_study(study: Study) -> str:
    """Return a study as JSON text.

    Raises:
        InvalidRecordError: A value cannot be written as JSON, or contradicts another one.
    """
    _check(study, "study")
    content = {"format": _FORMAT, "version": _VERSION, **encode(study, "study")}
    return _lines(content) + "\n"


def parse_study(text: str | bytes, *, name: str = "study") -> Study:
    """Return the study that `format_study` wrote.

    Args:
        text: The JSON.
        name: The name of the study in messages, such as that of its file.

    Raises:
        InvalidRecordError: The text is not a study, or a value in it is invalid.
    """
    return _parse(lambda: _json.load(text, name), name)


def _parse(read: Callable[[], _json.JSON], name: str) -> Study:
    try:
        content = read()
    except _json.InvalidJSONError as error:
        raise InvalidRecordError(str(error)) from error
    if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
        raise InvalidRecordError(f"{name} is not the study of a comparison.")
    version = content.pop("version", None)
    if version != _VERSION:
        raise InvalidRecordError(
            f"{name}: version={reprlib.repr(version)} of the format is unknown; this release "
            f"of composable reads version {_VERSION}."
        )
    study = decode(Study, content, name)
    _check(study, name)
    return study


def _lines(content: dict[str, Any]) -> str:
    """Format JSON with one line for each field of the protocol, trial and step cost."""
    parts = []
    for name, value in content.items():
        if isinstance(value, dict):
            inner = [f"  {json.dumps(key)}: {_compact(one)}" for key, one in value.items()]
            parts.append(f"{json.dumps(name)}: {{\n" + ",\n".join(inner) + "\n}")
        elif isinstance(value, list) and value:
            inner = [f"  {_compact(one)}" for one in value]
            parts.append(f"{json.dumps(name)}: [\n" + ",\n".join(inner) + "\n]")
        else:
            parts.append(f"{json.dumps(name)}: {_compact(value)}")
    return "{\n" + ",\n".join(parts) + "\n}"


def _compact(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


# --- checks beyond the types of fields ---


def _check(study: Study, path: str) -> None:
    """Check values that the types of the fields allow."""
    for problem in _problems(study):
        raise InvalidRecordError(f"{path}.{problem}.")


def _problems(study: Study) -> Iterator[str]:
    arms = {*study.protocol.arms, *filter(None, [study.protocol.repeated])}
    yield from (f"protocol.{problem}" for problem in _bad_protocol(study.protocol, arms))
    for index, result in enumerate(study.results):
        yield from (f"results[{index}].{problem}" for problem in _bad_result(result, arms))
    for index, cost in enumerate(study.costs):
        yield from (f"costs[{index}].{problem}" for problem in _bad_cost(cost, arms))


def _bad_protocol(protocol: Protocol, arms: set[str]) -> Iterator[str]:
    if len(set(protocol.arms)) < len(protocol.arms):
        yield f"arms={list(protocol.arms)!r} must differ from one another"
    if protocol.baseline not in protocol.arms:
        yield f"baseline={protocol.baseline!r} must be one of {list(protocol.arms)}"
    if protocol.target is not None and not math.isfinite(protocol.target):
        yield f"target={protocol.target!r} must be finite, or None"
    for field in ("grids", "chosen", "own_durations"):
        for arm in sorted(getattr(protocol, field).keys() - arms):
            yield f"{field} has the unknown arm {arm!r}; the arms are {sorted(arms)}"
    for index, duration in enumerate(protocol.durations):
        yield from _bad_duration(f"durations[{index}]", duration)
    for arm, durations in protocol.own_durations.items():
        if not durations:
            yield f"own_durations[{arm!r}] must have at least one duration"
        for index, duration in enumerate(durations):
            yield from _bad_duration(f"own_durations[{arm!r}][{index}]", duration)


def _bad_cost(cost: StepCost, arms: set[str]) -> Iterator[str]:
    yield from _bad_arm("arm", cost.arm, arms)
    yield from _bad_duration("duration", cost.duration)
    yield from _bad_order("progress", cost.progress)
    if len(cost.seconds) != len(cost.progress):
        yield f"seconds has {len(cost.seconds)} points, and progress has {len(cost.progress)}"
    for row in cost.seconds:
        yield from _negative("seconds", row)


def _bad_result(result: TrialResult, arms: set[str]) -> Iterator[str]:
    yield from _bad_arm("trial.arm", result.trial.arm, arms)
    yield from _bad_duration("trial.duration", result.trial.duration)
    yield from _negative("batches", [result.batches])
    for part in ("setup", "warmup", "training", "evaluation"):
        yield from _negative(f"seconds.{part}", [getattr(result.seconds, part)])
    yield from _bad_order("curve", [one.progress for one in result.curve], "progress")
    batches = [one.batch for one in result.curve]
    yield from _negative("curve: batch", batches)
    if batches != sorted(batches):
        yield f"curve must be in order of batches, not {batches}"
    yield from _negative("curve: seconds", [one.seconds for one in result.curve])


def _bad_arm(place: str, arm: str, arms: set[str]) -> Iterator[str]:
    if arm not in arms:
        yield f"{place}={arm!r} must be one of {sorted(arms)}"


def _bad_duration(place: str, duration: str) -> Iterator[str]:
    try:
        Time.parse(duration)
    except ValueError as error:
        yield f"{place}={duration!r} is not a duration: {error}"


def _bad_order(place: str, progress: Iterable[float], what: str = "values") -> Iterator[str]:
    points = list(progress)
    if points != sorted(points) or not all(0 <= point <= 1 for point in points):
        yield f"{place}: {what} {points} must be ascending, from 0 to 1"


def _negative(place: str, values: Iterable[float]) -> Iterator[str]:
    for value in values:
        if value < 0:
            yield f"{place}={value!r} must not be negative"
