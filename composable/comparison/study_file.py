"""The records of a comparison as JSON: the file of a study, and the files of finished trials.

A number that is not finite is a text, such as "nan". Fields of other releases are ignored.
"""

import json
import math
import platform
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_origin

import attrs
import torch

from composable._support import strict_json
from composable._support.checks import as_path
from composable._support.paths import write_atomically
from composable._support.printable import shorten
from composable._support.warn import warn_user
from composable._version import __version__
from composable.comparison.digest import stable_digest
from composable.comparison.records import Scalar, Study, Trial, TrialResult
from composable.comparison.trial import Compared

if TYPE_CHECKING:
    from cattrs import Converter


T = TypeVar("T")

_HEADER = {"format": "composable study", "version": 1}
_CACHE_FORMAT = 4


class InvalidRecordError(ValueError):
    """A record, or its JSON, has a missing or invalid field."""


# --- files ---


def write_study(study: Study, path: str | Path) -> Path:
    """Write a study to a JSON file, atomically; an existing file is replaced.

    Raises:
        InvalidRecordError: A value cannot be written as JSON.
        OSError: The file cannot be written.
    """
    return write_atomically(as_path("path", path), format_study(study).encode())


def read_study(path: str | Path) -> Study:
    """Read a study from the JSON file that `write_study` wrote.

    Raises:
        InvalidRecordError: The file is not a study, or a value is of another type; the message has
            the path of the field.
        OSError: The file cannot be read.
    """
    file = as_path("path", path)
    return _study(lambda: strict_json.load_file(file), file.name)


def format_study(study: Study) -> str:
    """Return a study as JSON, with one line for each field of the protocol, trial and step cost."""
    text = re.sub(r",\n {3,}", ", ", _dump({**_HEADER, **encode(study)}))
    return re.sub(r"\n {3,}|\n {2}(?=[]}])", "", text) + "\n"


def parse_study(text: str | bytes) -> Study:
    """Return the study that `format_study` wrote."""
    return _study(lambda: strict_json.load(text, "study"), "study")


def _study(read: Callable[[], Any], name: str) -> Study:
    try:
        content = read()
    except strict_json.InvalidJSONError as error:
        raise InvalidRecordError(str(error)) from error
    header = {key: content.get(key) for key in _HEADER} if isinstance(content, dict) else {}
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
        return decode(kind, strict_json.load_file(path), path.name)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warn_user(f"{path} is damaged, and {consequence}: {error!r}", DamagedCacheWarning)
        return None


def write_stored(records: Any, path: Path) -> None:
    """Write a record, or a tuple of them, to a file; its folder is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _dump(encode(records)).encode())


class Cache:
    """Finished trials, one JSON file each.

    A stored trial is reused if everything that may affect its result is the same: the code of the
    compared function and the objects that it refers to, the arguments of the arm, the duration, the
    seed, the threads, the versions of Python, torch and this library, and `data`. The name of the
    arm may change. The contents of files that the function reads are not compared: `data` stands
    for them.
    """

    def __init__(self, folder: str | Path, subject: Compared, *, data: Any = None) -> None:
        self.folder, self.subject = as_path("folder", folder), subject
        versions = (platform.python_version(), torch.__version__, __version__)
        shared = (subject.function, subject.threads, subject.metrics)
        self._context = stable_digest(
            _CACHE_FORMAT, versions, torch.cuda.is_available(), data, *shared
        )

    def path(self, trial: Trial) -> Path:
        """Return the file of a trial."""
        arguments = self.subject.arguments(trial)
        key = stable_digest(
            self._context, arguments, dict(trial.settings), trial.duration, trial.seed
        )
        return self.folder / f"{key[:32]}.json"

    def get(self, trial: Trial) -> TrialResult | None:
        """Return the result of a trial, or None if it is not stored."""
        found = read_stored(TrialResult, self.path(trial), "its trial is run again")
        # The arm may have another name.
        return None if found is None else attrs.evolve(found, trial=trial)

    def put(self, result: TrialResult) -> None:
        """Store the result of a trial, unless it failed."""
        if result.outcome != "failed":
            write_stored(result, self.path(result.trial))


# --- records ---


def encode(record: Any) -> Any:
    """Return a record as JSON values."""
    return _converter().unstructure(record)


def _dump(content: Any) -> str:
    try:
        return json.dumps(content, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:  # such as a function, or an infinity, in the settings
        raise InvalidRecordError(f"the record cannot be written as JSON: {error}.") from None


def decode(kind: type[T], value: Any, path: str = "record") -> T:
    """Return the record of JSON values, the inverse of `encode`.

    Raises:
        InvalidRecordError: A field is missing or of another type; the message ends with its path,
            such as "study.results[3].seconds.training".
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

    converter = Converter()
    hook = converter.register_structure_hook

    @converter.register_structure_hook_factory(_is_tuple)
    def structure_tuple(declared: Any) -> Any:
        items = homogenous_tuple_structure_factory(declared, converter)
        return lambda value, _: items(_checked(list, value), declared)

    hook(Scalar, lambda value, _: _scalar(value))
    hook(float, lambda value, _: _number(value))
    for kind in (int, str):
        hook(kind, lambda value, kind: _checked(kind, value))
    converter.register_unstructure_hook(Scalar, lambda value: value)
    converter.register_unstructure_hook(
        float, lambda value: float(value) if math.isfinite(value) else str(float(value))
    )
    return converter


def _is_tuple(kind: Any) -> bool:
    return get_origin(kind) is tuple


def _checked(kind: type[T], value: Any) -> T:
    if type(value) is not kind:
        raise ValueError(f"{shorten(value)} must be of the type {kind.__name__}")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, (int, float, str)) or isinstance(value, bool):
        raise ValueError(f"{shorten(value)} must be a number")
    return float(value)  # of text too: "nan"


def _scalar(value: Any) -> Scalar:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"{shorten(value)} must be null, true, false, a number or a string")
