"""Finished trials on disk: an interrupted comparison resumes with those that it lacks."""

import json
import math
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch

from composable._version import __version__
from composable.comparison.records import Evaluation, Seconds, TrialResult
from composable.comparison.trials.digest import digest_of
from composable.comparison.trials.trial import Request
from composable.core._warnings import warn_user
from composable.functional._checks import as_path

__all__ = ["Cache", "DamagedCacheWarning"]

_FORMAT = 1
_KEPT = ("finished", "diverged", "stopped")


class DamagedCacheWarning(UserWarning):
    """A stored trial cannot be read, and is run again."""


class Cache:
    """Finished trials, one JSON file each.

    A trial is found again if nothing has changed that may change its result: the code of `build`
    and what it refers to, the arguments of the arm, the duration, the seed, the threads, the
    versions of Python, torch and this library, and `data`. The name of the arm may change. Data
    that `build` reads from files is not seen, and `data` stands for it.

    Args:
        folder: The folder of the files; it is created.
        data: What identifies the data: a version, the lengths of the data sets, or both.

    Example:
        >>> import tempfile
        >>> from composable.comparison.trials.cache import Cache
        >>> cache = Cache(tempfile.mkdtemp(), data={"version": "2024-05", "examples": 50_000})
    """

    def __init__(self, folder: str | Path, *, data: Any = None) -> None:
        self.folder = as_path("folder", folder)
        self.data = data

    def context(self, *parts: Any) -> str:
        """Return the digest of what all trials of a pool have in common.

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
            return _decode(json.loads(path.read_bytes()), request)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
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
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            partial.write_text(json.dumps(_encode(result), indent=1, allow_nan=False))
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def _encode(result: TrialResult) -> dict[str, Any]:
    trial = result.trial
    return {
        "format": _FORMAT,
        "arm": trial.arm,  # for readers; the name of the request counts
        "duration": trial.duration,
        "seed": trial.seed,
        "outcome": result.outcome,
        "batches": result.batches,
        "seconds": attrs.asdict(result.seconds),
        "curve": [
            {**attrs.asdict(one), "metrics": {n: _number(v) for n, v in one.metrics.items()}}
            for one in result.curve
        ],
        "error": result.error,
        "together": result.together,
    }


def _number(value: float) -> float | str:
    """Return a number as JSON has it: it has no NaN and no infinities."""
    return value if math.isfinite(value) else str(value)


def _decode(stored: Mapping[str, Any], request: Request) -> TrialResult:
    if stored["format"] != _FORMAT or stored["outcome"] not in _KEPT:
        raise ValueError(f"format {stored['format']!r}, outcome {stored['outcome']!r}")
    seconds = {name: float(value) for name, value in stored["seconds"].items()}
    curve = tuple(
        Evaluation(
            int(one["batch"]),
            float(one["progress"]),
            float(one["seconds"]),
            {str(name): float(value) for name, value in one["metrics"].items()},
        )
        for one in stored["curve"]
    )
    return TrialResult(
        request.trial,
        stored["outcome"],
        int(stored["batches"]),
        Seconds(**seconds),
        curve,
        stored["error"],
        bool(stored.get("together", False)),
    )
