"""Printing of errors, with the exit status of a command."""

import sys

from composable._support.printable import printable


def refuse(error: Exception, status: int = 2) -> int:
    """Print an error, and return the exit status."""
    print(*map(printable, f"composable: {error}".splitlines()), sep="\n", file=sys.stderr)
    return status


class SettingsError(ValueError):
    """A file of settings, or an override of one, is wrong."""
