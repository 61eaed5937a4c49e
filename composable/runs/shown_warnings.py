"""Receive the warnings that are shown, in addition to whatever shows them."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

_listening: list["ShownWarnings"] = []
_shows: Any = None
"""What shows warnings while any object listens."""


class ShownWarnings:
    """Passes every warning that Python shows to a function.

    The filters of warnings apply first, so a warning that is shown once is received once. Warnings
    that are recorded by `warnings.catch_warnings(record=True)` count as shown.

    Args:
        receive: A function of the category, the message, and the file name with the line number.

    Example:
        >>> import warnings
        >>> from composable.runs.shown_warnings import ShownWarnings
        >>> shown = ShownWarnings(lambda category, message, where: print(category, message))
        >>> with warnings.catch_warnings(record=True):
        ...     warnings.simplefilter("always")
        ...     shown.listen()
        ...     warnings.warn("loss is constant")
        ...     shown.stop()
        UserWarning loss is constant
    """

    def __init__(self, receive: Callable[[str, str, str], None]) -> None:
        self._receive = receive

    def listen(self) -> None:
        """Receive warnings from now on."""
        global _shows
        if self in _listening:
            return
        if warnings.showwarning is not _show:
            _shows, warnings.showwarning = warnings.showwarning, _show  # type: ignore[assignment]
        _listening.append(self)

    def stop(self) -> None:
        """Receive no more warnings."""
        if self not in _listening:
            return
        _listening.remove(self)
        if not _listening and warnings.showwarning is _show:
            warnings.showwarning = _shows


def _show(message: Any, category: Any, filename: str, lineno: int, *rest: Any) -> None:
    where = f"{Path(filename).name}:{lineno}"
    for one in list(_listening):
        one._receive(category.__name__, str(message), where)
    _shows(message, category, filename, lineno, *rest)
