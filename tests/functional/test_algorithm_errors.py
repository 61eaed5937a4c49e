"""An algorithm and its function raise the same error for the same invalid argument."""

import inspect

import pytest

from composable.algorithms import EMA
from tests.support.cases import all_cases


def shared():
    """List the arguments that an algorithm shares with a function; those of EMA are times."""
    return [
        (case, one, name)
        for case in all_cases()
        if case.algorithm and case.algorithm.kind is not EMA
        for one in case.functions
        for name in inspect.signature(one.function).parameters
        if name in inspect.signature(case.algorithm.kind).parameters
    ]


def error_of(function, arguments):
    with pytest.raises((TypeError, ValueError)) as caught:
        function(**arguments)
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize(("case", "function", "name"), shared(), ids=str)
def test_algorithm_and_function_raise_the_same_error(unchecked, case, function, name):
    ours = case.invalid_values(case.algorithm.kind)[name]
    theirs = case.invalid_values(function.function, function.invalid)[name]
    for value in ours:
        if repr(value) not in map(repr, theirs):
            continue
        error = error_of(case.algorithm.kind, {**case.algorithm.valid(), name: value})

        assert error == error_of(function.function, {**function.valid(), name: value})
        assert error[1].startswith((f"{name}=", f"{name} "))  # a tensor is not shown
        assert " must " in error[1]
        assert error[1].endswith(".")
