"""The errors for packages that are not installed, or older than the library's metadata allows."""

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

_FLOOR = re.compile(r"""([\w.-]+)(?:\[.*])?>=([\d.]+)(?:; extra == ["'](\w+)["'])?""")


@contextmanager
def needs(what: str, extra: str, advice: str = "") -> Iterator[None]:
    """Explain how to install a package that is imported in the block.

    Args:
        what: What needs it.
        extra: The extra of this library that has it.
        advice: A sentence that the message ends with, such as another way.

    Raises:
        ModuleNotFoundError: A package is not installed.
        ImportError: It is, and can't be imported, or is too old.
    """
    try:
        check_floors(extra)
        yield
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError)
        package = (error.name or "a package").partition(".")[0]
        why = "the library does not install by default"
        if isinstance(error, TooOldError):
            raise
        if not absent:
            why = f"can't be imported ({error})"
        raise (ModuleNotFoundError if absent else ImportError)(
            f'{what} needs {package}, which {why}: pip install "composable[{extra}]".'
            f"{advice and f' {advice}'}",
            name=error.name,
        ) from error


class TooOldError(ImportError):
    """A package is older than the oldest version that the library works with."""


@functools.cache
def check_floors(extra: str = "") -> None:
    """Raise a TooOldError for an installed package that is too old.

    Args:
        extra: The extra whose packages are checked; without one, what every installation has.
    """
    try:
        required = metadata.requires("composable") or []
    except metadata.PackageNotFoundError:  # a copy of the source, which states no versions
        return
    for match in filter(None, map(_FLOOR.fullmatch, required)):
        name, floor, of = match.groups(default="")
        if of != extra:
            continue
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if installed and _numbers(installed) < _numbers(floor):  # None: its metadata is damaged
            raise TooOldError(
                f"{name} {installed} is older than {floor}, the oldest version that this library "
                f"works with: pip install '{name}>={floor}'.",
                name=name,
            )


def _numbers(version: str) -> list[int]:
    return [*map(int, re.findall(r"\d+", version)), 0, 0][:3]
