"""Names whose modules were moved: until the next release, the old paths return them and warn."""

import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED: dict[str, str | dict[str, str]] = {
    "composable.core.batch": "composable.batches.batch",
    "composable.core.batch_layouts": "composable.batches.layouts",
    "composable.core.batch_source": "composable.batches.source",
    "composable.core.batch_spec": "composable.batches.spec",
    "composable.core.divisors": "composable.batches.divisors",
    "composable.core.joined": "composable.batches.joined",
    "composable.core.loss": "composable.losses.loss",
    "composable.core.loss_confirmation": "composable.losses.confirmation",
    "composable.core.loss_mean": "composable.losses.mean",
    "composable.core.loss_terms": "composable.losses.terms",
    "composable.core.loss_watch": "composable.losses.watch",
    "composable.core.loss_weights": "composable.losses.weights",
    "composable.core.model_call": "composable.batches.model_call",
    "composable.core.own_loss": "composable.losses.own_loss",
    "composable.core.part_weights": "composable.losses.part_weights",
    "composable.core.precision": "composable.batches.precision",
    "composable.core.target_hints": "composable.batches.target_hints",
    "composable.distributed.launch": "composable.launch.launch",
    "composable.distributed.launch_options": "composable.launch.options",
    "composable.optim.per_group": "composable.optim.per_name",
    "composable.optim.per_option": "composable.optim.per_name",
    "composable.trainer.best": {
        "Best": "composable.resume",
        "NoBestCheckpointWarning": "composable.resume",
    },
    "composable.trainer.compilation": {"CompilationWarning": "composable"},
    "composable.trainer.loss_scaler": {"GradientOverflowError": "composable.engines.scaled"},
    "composable.trainer.resume": {
        "BrokenCheckpointWarning": "composable.resume",
        "ChangedRunWarning": "composable.resume",
    },
    "composable.trainer.run_lock": {"FolderInUseError": "composable.resume"},
    "composable.trainer.signals": {"Preempted": "composable.distributed.signals"},
}
"""By each old module, the module that has its names now, or the new module of each name."""


RENAMED = {
    "composable.functional": {
        "LowPrecisionGroupNorm": "LowPrecisionGroupNormLayer",
        "LowPrecisionLayerNorm": "LowPrecisionLayerNormLayer",
        "LowPrecisionRMSNorm": "LowPrecisionRMSNormLayer",
    },
    "composable.report.recorded_run": {"Clock": "BatchClock"},
    "composable.runs.diff": {"Comparison": "RunDifference", "compare": "diff_runs"},
}
"""The new names of what a module or a package exports, by their old names."""


def renamed(module: str, name: str) -> Any:
    """Return what a module exports under a new name, and warn; for its `__getattr__`.

    Raises:
        AttributeError: It had no such name.
    """
    new = RENAMED.get(module, {}).get(name)
    if new is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    message = f"{module}.{name} goes with the next release: use {new}."
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return getattr(import_module(module), new)


class _OldModule(ModuleType):
    """A module that is empty but for names that were moved."""

    def __getattr__(self, name: str) -> Any:
        new = MOVED[self.__name__]
        module = new if isinstance(new, str) else new.get(name)
        if module is None or name not in import_module(module).__all__:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        warnings.warn(
            f"{self.__name__} goes with the next release: import {name} from {module}.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(import_module(module), name)


class OldPaths:
    """Finds and loads the old modules, after all other finders of `sys.meta_path`."""

    @classmethod
    def find_spec(cls, name: str, *_: Any) -> ModuleSpec | None:
        """Return the spec of an old module; None for any other."""
        return ModuleSpec(name, cls) if name in MOVED else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        """Return an old module."""
        return _OldModule(spec.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Do nothing: the module has no code."""


sys.meta_path.append(OldPaths)
