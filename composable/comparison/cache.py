"""Store finished trials on disk, so that an interrupted comparison can resume."""

import json
import platform
from pathlib import Path
from typing import Any, TypeVar

import attrs
import torch

from composable._version import __version__
from composable.comparison.digest import digest_of
from composable.comparison.records import TrialResult
from composable.comparison.study_file import decode, encode
from composable.comparison.trial import Request
from composable.core import _json
from composable.core._paths import write_atomically
from composable.core._warnings import warn_user
from composable.functional._checks import as_path

__all__ = ["Cache", "DamagedCacheWarning", "read_stored", "write_stored"]

T = TypeVar("T")

_FORMAT = 2
_KEPT = ("finished", "diverged", "stopped")


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
    content = [*map(encode, records)] if isinstance(records, tuple) else encode(records)
    write_atomically(path, json.dumps(content, indent=1, allow_nan=False).encode())


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

    Example:
        >>> import tempfile
        >>> from composable.comparison.cache import Cache
        >>> cache = Cache(tempfile.mkdtemp(), data={"version": "2024-05", "examples": 50_000})
    """

    def __init__(self, folder: str | Path, *, data: Any = None) -> None:
        self.folder = as_path("folder", folder)
        self.data = data

    def context(self, *parts: Any) -> str:
        """Return the digest of the values that all trials share: the function, and its options."""
        versions = (platform.python_version(), torch.__version__, __version__)
        return digest_of(_FORMAT, versions, torch.cuda.is_available(), self.data, *parts)

    def path(self, context: str, request: Request) -> Path:
        """Return the file of a trial in a context."""
        trial = request.trial
        key = digest_of(
            context, dict(request.arguments), dict(trial.settings), trial.duration, trial.seed
        )
        return self.folder / f"{key[:32]}.json"

    def get(self, context: str, request: Request) -> TrialResult | None:
        """Return the result of a trial, or None if it is not stored."""
        found = read_stored(TrialResult, self.path(context, request), "its trial is run again")
        # The arm may have another name.
        return None if found is None else attrs.evolve(found, trial=request.trial)

    def put(self, context: str, request: Request, result: TrialResult) -> None:
        """Store the result of a trial, unless it failed."""
        if result.outcome in _KEPT:
            write_stored(result, self.path(context, request))
