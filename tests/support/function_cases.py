"""Every row of the matrix of properties: see `tests/cases`."""

from collections.abc import Iterator

from tests.support.cases import Case, FunctionCase, all_cases


def all_function_cases() -> Iterator[tuple[Case, FunctionCase]]:
    """List the rows, each with its method; single operations on images come last."""
    for case in sorted(all_cases(), key=lambda case: (not case.overview, case.name)):
        for row in case.functions:
            if not row.no_row:
                yield case, row
