"""Tables of cases that take less time than their collection, each in one test."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def folded(names: str, cases: Iterable[Any] | Callable[..., Iterable[Any]]) -> Any:
    """Run a test for each case like `pytest.mark.parametrize`, in one test that names all failures.

    Args:
        names: The names of the arguments, separated by commas.
        cases: Their values: a tuple for several names. Or a function of the other arguments.
    """
    keys = names.split(",")

    def fold(check: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(check)
        def test(**others: Any) -> None:
            failed = []
            for case in cases(**others) if callable(cases) else cases:
                values = case if len(keys) > 1 else (case,)
                try:
                    check(**others, **dict(zip(keys, values, strict=True)))
                except (Exception, pytest.fail.Exception) as error:
                    failed.append(f"{case!r}: {type(error).__name__}: {error}")
            assert not failed, "\n".join(failed)

        signature = inspect.signature(check)
        kept = [one for name, one in signature.parameters.items() if name not in keys]
        test.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return test

    return fold
