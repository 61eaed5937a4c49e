"""Warnings that point at the user's code."""

import sys
import warnings

__all__ = ["warn_user"]


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the first line outside of the package, which the user can change.

    Example:
        >>> import warnings
        >>> from composable.core._warnings import warn_user
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn_user("no data", UserWarning)
        >>> str(caught[0].message)
        'no data'
    """
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)


def _is_ours(module: str) -> bool:
    # contextlib runs the generators of our context managers.
    return module.partition(".")[0] == "composable" or module == "contextlib"
