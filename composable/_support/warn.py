"""Warnings: of the methods, each of a separate class to filter it by; and where they point to."""

import sys
import warnings
from typing import Any

# contextlib runs the generators of context managers, torch calls the layers, importlib runs
# modules, and jaxtyping and beartype check the arguments.
_SKIPPED = {
    *("composable", "contextlib", "torch", "importlib", "_frozen_importlib"),
    *("jaxtyping", "beartype"),
}


class NoEffectWarning(UserWarning):
    """A model in which a method found nothing to replace, or a layer it could not replace."""


class ImageRangeWarning(UserWarning):
    """Images that are not in the range to which operations clip, such as normalized ones."""


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the first line of the user: outside of the package, PyTorch and type checkers.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn_user("no data")
        >>> str(caught[0].message)
        'no data'
    """
    frame = sys._getframe()
    while frame.f_back is not None and _module(frame.f_globals).partition(".")[0] in _SKIPPED:
        frame = frame.f_back
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        _module(frame.f_globals),
        frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _module(names: dict[str, Any]) -> str:
    return names.get("__name__") or ""
