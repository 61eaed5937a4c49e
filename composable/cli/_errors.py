"""Printing of reports and errors, with the exit status."""

import sys
import traceback
from collections.abc import Callable
from typing import Any

from composable._support.printable import printable

__all__ = ["print_report", "refuse"]


def refuse(error: Exception, status: int = 2) -> int:
    """Print an error, and return the exit status."""
    print(*map(printable, f"composable: {error}".splitlines()), sep="\n", file=sys.stderr)
    return status


def print_report(make: Callable[[], Any]) -> int:
    """Print a report, or the error that prevents it, and return the exit status.

    Args:
        make: Creates the report, which has an attribute `same`.
    """
    from composable.checkpoint.errors import CheckpointError

    try:
        report = make()
    except CheckpointError as error:
        return refuse(error)
    except Exception:  # raised by the script of a replay
        traceback.print_exc()
        return 2
    print(report)
    return 0 if report.same else 1
