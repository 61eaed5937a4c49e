"""Send functions to worker processes: those of scripts, notebooks and closures too."""

import importlib.util
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from composable.core._paths import write_atomically

__all__ = ["pickled", "write_setup"]


def write_setup(path: Path, build: Any, threads: int) -> None:
    """Write what each worker reads when it starts.

    Args:
        path: The file.
        build: The user's function.
        threads: The number of threads of each worker.
    """
    setup = {"path": list(sys.path), "argv": list(sys.argv), "threads": threads}
    write_atomically(path, pickle.dumps(setup) + pickled("build", build, build))


def pickled(name: str, value: Any, build: Any = None) -> bytes:
    """Return a value as bytes, functions of scripts and notebooks by value.

    Args:
        name: What it is, for errors.
        value: The value.
        build: The user's function, whose module may be one that cannot be imported.

    Raises:
        ImportError: cloudpickle is not installed.
        TypeError: The value cannot be pickled.
    """
    try:
        import cloudpickle
    except ImportError as error:
        raise ImportError(
            "a comparison needs cloudpickle: pip install composable[compare]. It is an extra, "
            "which the library does not install by default."
        ) from error
    try:
        with _by_value(cloudpickle, build):
            return bytes(cloudpickle.dumps(value))
    except Exception as error:  # an object may raise anything
        raise TypeError(
            f"{name} cannot be sent to worker processes: {error}. Create what cannot be pickled, "
            "such as open files, locks and generators, inside of build, or, in an algorithm, "
            "when it is first called."
        ) from error


@contextmanager
def _by_value(cloudpickle: Any, build: Any) -> Iterator[None]:
    """Pickle the functions of a module by value if workers could not import it."""
    module = sys.modules.get(getattr(build, "__module__", None) or "")
    if module is None or _is_importable(module):
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _is_importable(module: ModuleType) -> bool:
    if module.__name__ == "__main__":
        return True  # cloudpickle pickles its functions by value itself
    parents = module.__name__.split(".")[:-1]
    try:
        return all(_finds(".".join(parents[: i + 1])) for i in range(len(parents))) and _finds(
            module.__name__, module
        )
    except (ImportError, ValueError):
        return False


def _finds(name: str, module: ModuleType | None = None) -> bool:
    """Return whether the import system finds a module, and if given, in the same file."""
    kept = sys.modules.pop(name, None) if module is not None else None
    try:
        spec = importlib.util.find_spec(name)
    finally:
        if kept is not None:
            sys.modules[name] = kept
    file = getattr(module, "__file__", None)
    return spec is not None and (file is None or spec.origin == file)
