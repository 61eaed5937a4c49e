"""The records of a comparison as JSON: the file of a study, and those of finished trials.

A number that is not finite is a text, such as "nan", or `{"$float": "nan"}` where a field may hold
text as well.
"""

import json
import math
import platform
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_origin

import attrs
import torch

from composable._version import __version__
from composable.comparison.digest import stable_digest
from composable.comparison.records import Evaluation, Scalar, Study, TrialResult
from composable.comparison.trial import TrialRequest
from composable.core import _json
from composable.core._paths import write_atomically
from composable.core._printable import shorten
from composable.core._warnings import warn_user
from composable.functional._checks import as_path

if TYPE_CHECKING:
    from cattrs import Converter

__all__ = [
    "Cache",
    "DamagedCacheWarning",
    "InvalidRecordError",
    "decode",
    "encode",
    "format_study",
    "parse_study",
    "read_stored",
    "read_study",
    "write_stored",
    "write_study",
]

T = TypeVar("T")

_HEADER = {"format": "composable study", "version": 1}
_FORMER = {Evaluation: {"progress", "seconds"}, TrialResult: {"together"}}
"""The fields of studies of earlier releases."""
_CACHE_FORMAT = 3
_KEPT = ("finished", "diverged", "stopped")


class InvalidRecordError(ValueError):
    """A record, or its JSON, has a missing, unknown or invalid field."""


# --- files ---


def write_study(study: Study, path: str | Path) -> Path:
    """Write a study to a JSON file, atomically; an existing file is replaced.

    Args:
        study: The study.
        path: The file; its folder must exist.

    Raises:
        InvalidRecordError: A value cannot be written as JSON.
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
    return _study(lambda: _json.read(file), file.name)


def format_study(study: Study) -> str:
    """Return a study as JSON, with one line for each field of the protocol, trial and step cost."""
    text = json.dumps({**_HEADER, **encode(study)}, indent=1, allow_nan=False)
    text = re.sub(r",\n {3,}", ", ", text)
    return re.sub(r"\n {3,}|\n {2}(?=[]}])", "", text) + "\n"


def parse_study(text: str | bytes) -> Study:
    """Return the study that `format_study` wrote."""
    return _study(lambda: _json.load(text, "study"), "study")


def _study(read: Callable[[], Any], name: str) -> Study:
    try:
        content = read()
    except _json.InvalidJSONError as error:
        raise InvalidRecordError(str(error)) from error
    header = {key: content.pop(key, None) for key in _HEADER} if isinstance(content, dict) else {}
    if header != _HEADER:
        raise InvalidRecordError(
            f"{name} is not a study that this release of composable reads: it must have {_HEADER}, "
            f"and has {shorten(header)}."
        )
    return decode(Study, content, name)


# --- finished trials ---


class DamagedCacheWarning(UserWarning):
    """What is stored cannot be read, and is measured again."""


def read_stored(kind: type[T], path: Path, consequence: str) -> T | None:
    """Return the records of a file; None if there is none, or with a warning if it is damaged."""
    try:
        return decode(kind, _json.read(path), path.name)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warn_user(f"{path} is damaged, and {consequence}: {error!r}", DamagedCacheWarning)
        return None


def write_stored(records: Any, path: Path) -> None:
    """Write a record, or a tuple of them, to a file; its folder is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(encode(records), indent=1, allow_nan=False).encode())


class Cache:
    """Finished trials, one JSON file each.

    A stored trial is reused if everything that may affect its result is the same: the code of the
    compared function and the objects that it refers to, the arguments of the arm, the duration, the
    seed, the threads, the versions of Python, torch and this library, and `data`. The name of the
    arm may change. The contents of files that the function reads are not compared: `data` stands
    for them.

    Args:
        folder: The folder of the files; it is created.
        data: An identifier of the data: a version, the lengths of the data sets, or both.
    """

    def __init__(self, folder: str | Path, *, data: Any = None) -> None:
        self.folder = as_path("folder", folder)
        self.data = data

    def context(self, *parts: Any) -> str:
        """Return the digest of the values that all trials share: the function, and its options."""
        versions = (platform.python_version(), torch.__version__, __version__)
        return stable_digest(_CACHE_FORMAT, versions, torch.cuda.is_available(), self.data, *parts)

    def path(self, context: str, request: TrialRequest) -> Path:
        """Return the file of a trial in a context."""
        trial, arguments = request.trial, dict(request.arguments)
        key = stable_digest(context, arguments, dict(trial.settings), trial.duration, trial.seed)
        return self.folder / f"{key[:32]}.json"

    def get(self, context: str, request: TrialRequest) -> TrialResult | None:
        """Return the result of a trial, or None if it is not stored."""
        found = read_stored(TrialResult, self.path(context, request), "its trial is run again")
        # The arm may have another name.
        return None if found is None else attrs.evolve(found, trial=request.trial)

    def put(self, context: str, request: TrialRequest, result: TrialResult) -> None:
        """Store the result of a trial, unless it failed."""
        if result.outcome in _KEPT:
            write_stored(result, self.path(context, request))


# --- records ---


def encode(record: Any) -> Any:
    """Return a record as JSON values.

    Raises:
        InvalidRecordError: A value cannot be written as JSON, such as a function in the settings.
    """
    return _converter().unstructure(record)


def decode(kind: type[T], value: Any, path: str = "record") -> T:
    """Return the record of JSON values, the inverse of `encode`.

    Args:
        kind: The type of the record, such as `TrialResult`.
        value: The decoded JSON.
        path: The name of the record in messages.

    Raises:
        InvalidRecordError: A field is missing, unknown or of another type; the message ends with
            its path, such as "study.results[3].seconds.training".
    """
    try:
        return _converter().structure(value, kind)
    except Exception as error:
        from cattrs import transform_error

        faults = transform_error(error, path, format_exception=_describe)
        raise InvalidRecordError(f"{faults[0]}.") from None


def _describe(error: BaseException, _: Any) -> str:
    if isinstance(error, KeyError):
        return f"the field {error} is missing"
    return "must be an object" if isinstance(error, TypeError | AttributeError) else str(error)


@cache
def _converter() -> "Converter":
    """Return a converter that refuses what it would otherwise convert, such as "1" to 1."""
    from cattrs import Converter  # on use: it is slow to import
    from cattrs.cols import homogenous_tuple_structure_factory
    from cattrs.gen import make_dict_structure_fn

    converter = Converter(forbid_extra_keys=True)
    hook = converter.register_structure_hook

    @converter.register_structure_hook_factory(_is_tuple)
    def structure_tuple(declared: Any) -> Any:
        items = homogenous_tuple_structure_factory(declared, converter)
        return lambda value, _: items(_checked(list, value), declared)

    hook(Scalar, lambda value, _: _scalar(value))
    hook(float, lambda value, _: _number(value))
    for kind in (int, str):
        hook(kind, lambda value, kind: _checked(kind, value))
    for record, former in _FORMER.items():
        structure: Any = make_dict_structure_fn(record, converter)
        hook(record, partial(_structure_without, former, structure))
    converter.register_unstructure_hook(float, _finite)
    converter.register_unstructure_hook(Scalar, _marked)
    return converter


def _is_tuple(kind: Any) -> bool:
    return get_origin(kind) is tuple


def _structure_without(
    former: set[str], structure: Callable[[Any, Any], Any], value: Any, kind: Any
) -> Any:
    return structure({name: value[name] for name in value if name not in former}, kind)


def _checked(kind: type[T], value: Any) -> T:
    if type(value) is not kind:
        raise ValueError(f"{shorten(value)} must be of the type {kind.__name__}")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, (int, float, str)) or isinstance(value, bool):
        raise ValueError(f"{shorten(value)} must be a number")
    return float(value)  # of text too: "nan", and "NaN" in older files


def _finite(value: float) -> float | str:
    return float(value) if math.isfinite(value) else str(float(value))


def _marked(value: Any) -> Any:
    """Return a scalar as JSON, the inverse of `_scalar`."""
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    raise InvalidRecordError(
        f"{shorten(value)} cannot be written as JSON: use None, True, False, a number or a string."
    )


def _scalar(value: Any) -> Scalar:
    match value:
        case {"$float": str(text), **others} if not others:
            return float(text)
        case None | bool() | int() | float() | str():
            return value
    raise ValueError(f"{shorten(value)} must be null, true, false, a number or a string")
