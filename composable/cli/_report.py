"""Printing of the reports of `composable replay` and `composable diff`."""

import sys
import traceback
from collections.abc import Callable
from typing import Any


def print_report(make: Callable[[], Any]) -> int:
    """Print a report, or the error that prevents it, and return the exit status.

    Args:
        make: Creates the report, which has an attribute `same`.
    """
    from composable._support.printable import printable
    from composable.checkpoint.errors import CheckpointError

    try:
        report = make()
    except CheckpointError as error:
        print(*map(printable, f"composable: {error}".splitlines()), sep="\n", file=sys.stderr)
        return 2
    except Exception:  # raised by the script of a replay
        traceback.print_exc()
        return 2
    print(report)
    return 0 if report.same else 1
