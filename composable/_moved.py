"""Names whose modules were moved: until the next release, the old paths return them and warn."""

import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["MOVED", "OldPaths"]

MOVED = {
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
"""The modules from which names are imported now, by their old module and name."""


class _OldModule(ModuleType):
    """A module that is empty but for names that were moved."""

    def __getattr__(self, name: str) -> Any:
        module = MOVED[self.__name__].get(name)
        if module is None:
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
