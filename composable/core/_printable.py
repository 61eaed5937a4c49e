"""Text from files, made safe to print."""

__all__ = ["printable"]


def printable(text: str) -> str:
    r"""Escape control characters, such as those that change the colors or the title of a terminal.

    Example:
        >>> from composable.core._printable import printable
        >>> print(printable("loss\x1b[2J"))
        loss\x1b[2J
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
