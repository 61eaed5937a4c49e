"""Store finished trials on disk, so that an interrupted comparison can resume."""

import json
import platform
from pathlib import Path
from typing import Any

import attrs
import torch

from composable._version import __version__
from composable.comparison.records import TrialResult
from composable.comparison.study_file import decode, encode
from composable.comparison.trials.digest import digest_of
from composable.comparison.trials.trial import Request
from composable.core import _json
from composable.core._paths import write_atomically
from composable.core._warnings import warn_user
from composable.functional._checks import as_path

__all__ = ["Cache", "DamagedCacheWarning"]

_FORMAT = 2
_KEPT = ("finished", "diverged", "stopped")


class DamagedCacheWarning(UserWarning):
    """A stored trial cannot be read, and is run again."""


class Cache:
    """Finished trials, one JSON file each.

    A stored trial is reused if everything that may affect its result is the same: the code of
    `build` and the objects that it refers to, the arguments of the arm, the duration, the seed, the
    threads, the versions of Python, torch and this library, and `data`. The name of the arm may
    change. The contents of files that `build` reads are not compared: `data` stands for them.

    Args:
        folder: The folder of the files; it is created.
        data: An identifier of the data: a version, the lengths of the data sets, or both.

    Example:
        >>> import tempfile
        >>> from composable.comparison.trials.cache import Cache
        >>> cache = Cache(tempfile.mkdtemp(), data={"version": "2024-05", "examples": 50_000})
    """

    def __init__(self, folder: str | Path, *, data: Any = None) -> None:
        self.folder = as_path("folder", folder)
        self.data = data

    def context(self, *parts: Any) -> str:
        """Return the digest of the values that all trials of a pool share.

        Args:
            parts: The function that builds a Trainer, and the options of the pool.
        """
        versions = (platform.python_version(), torch.__version__, __version__)
        return digest_of(_FORMAT, versions, torch.cuda.is_available(), self.data, *parts)

    def path(self, context: str, request: Request) -> Path:
        """Return the file of a trial.

        Args:
            context: What `context` returned.
            request: The trial.
        """
        trial = request.trial
        key = digest_of(
            context, dict(request.arguments), dict(trial.settings), trial.duration, trial.seed
        )
        return self.folder / f"{key[:32]}.json"

    def get(self, context: str, request: Request) -> TrialResult | None:
        """Return the result of a trial, or None if it is not stored.

        Args:
            context: What `context` returned.
            request: The trial.
        """
        path = self.path(context, request)
        try:
            result = decode(TrialResult, _json.read(path), path.name)
            return attrs.evolve(result, trial=request.trial)  # the arm may have another name
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            warn_user(
                f"{path} is damaged, and its trial is run again: {error!r}", DamagedCacheWarning
            )
            return None

    def put(self, context: str, request: Request, result: TrialResult) -> None:
        """Store the result of a trial, unless it failed.

        Args:
            context: What `context` returned.
            request: The trial.
            result: Its result.
        """
        if result.outcome not in _KEPT:
            return
        path = self.path(context, request)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(encode(result), indent=1, allow_nan=False).encode())
