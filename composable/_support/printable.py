"""Text from files, made safe to print, and durations."""

import reprlib
from types import NoneType
from typing import Any

_MOST_BITS = 256


def shorten(value: Any, most: int = 80) -> str:
    """Return the start of the `repr` of a value from a file, whatever its size, in a short time.

    Example:
        >>> from composable._support.printable import shorten
        >>> shorten([[1, 2], "a" * 1000], 30)
        "[[1, 2], 'aaaaaaaaaa...aaaaaaa"
        >>> shorten(1 << 100_000)
        'an integer of 100001 bits'
    """
    return _SHORT.repr(value)[:most]


class _Short(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        bits = x.bit_length()
        return repr(x) if bits <= _MOST_BITS else f"an integer of {bits} bits"

    def repr_instance(self, x: Any, level: int) -> str:
        return repr(x) if isinstance(x, (bool, float, NoneType)) else f"<{type(x).__name__}>"


_SHORT = _Short()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 3, 80, 80


def printable(text: str) -> str:
    r"""Escape control characters, such as those that change the colors or the title of a terminal.

    Example:
        >>> from composable._support.printable import printable
        >>> print(printable("loss\x1b[2J"))
        loss\x1b[2J
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def brief(value: Any) -> str:
    """Format a float by four digits, and anything else as it is."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def format_duration(seconds: float) -> str:
    """Format finite seconds in two units at most.

    Example:
        >>> from composable._support.printable import format_duration
        >>> [format_duration(seconds) for seconds in (0.25, 75, 3 * 3600 + 59)]
        ['0.25 s', '1 min 15 s', '3 h 0 min']
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
