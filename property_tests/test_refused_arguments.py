"""Law: an invalid argument is refused by its name and its value, with what is allowed instead."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest
from torch import Tensor, nn

from composable.algorithms import EMA
from tests.support.calls import public_calls, uncalled, unchanged_registries
from tests.support.campaign import FULL
from tests.support.cases import Case, all_cases
from tests.support.folded import folded
from tests.support.invalid import NO_NAME, Invalid
from tests.support.refused import OF_FUNCTIONS, ROWS, TOGETHER
from tools.fuzz_arguments import HOSTILE, fuzz

pytestmark = pytest.mark.filterwarnings("ignore")
COUNT = len(HOSTILE) if FULL else 5  # for each argument
LONGEST = 60  # words of a message
ALLOWS = re.compile(
    "must|need|fit|may have|a time is|is at least|add|leave|write|([gG]ive|[uU]se|[pP]ass) "
)
CALLS = {call.name: call for call in public_calls()}


def invalid_values(case: Case) -> dict[str, Invalid]:
    """Return the invalid values of a method's functions, by their first cases, and algorithm."""
    found = {
        one.function.__name__: case.invalid_values(one.function, one.invalid)
        for one in case.functions[::-1]
    }
    if case.algorithm:
        found[case.algorithm.name] = case.invalid_values(case.algorithm.kind)
    return found


def rows() -> Iterator[tuple[str, str, Any, str]]:
    """List callables, each with an argument, an invalid value and a pattern of the message."""
    for name, argument, values, allowed in ROWS:
        yield from ((name, argument, value, allowed) for value in values)
    for case in all_cases():
        for name, arguments in invalid_values(case).items():
            for argument, values in arguments.items():
                assert values, f"{name} has no invalid value of {argument}"
                yield from ((name, argument, value, "") for value in values)


def together() -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """List callables, each with arguments that are invalid together, and a pattern."""
    yield from TOGETHER
    for case in all_cases():
        sets = {one.function.__name__: one.invalid_sets for one in case.functions[::-1]}
        if case.algorithm:
            sets[case.algorithm.name] = case.algorithm.invalid_sets
        yield from ((name, *one) for name, invalid in sets.items() for one in invalid)


INVALID: dict[str, list[tuple[str, Any, str]]] = {}
for name, *row in rows():
    INVALID.setdefault(name, []).append(tuple(row))


def test_every_public_callable_is_tried():
    assert not uncalled()


@pytest.mark.parametrize("name", CALLS)
def test_valid_arguments_are_accepted_and_hostile_ones_refused_by_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call = CALLS[name]
    # AzureML's package is in no environment of the tests.
    missing = {ModuleNotFoundError} & set(call.errors)
    with unchanged_registries(), suppress(*missing):
        call.run(call.valid())

    assert not [str(fault) for *_, fault in fuzz(call, count=COUNT) if fault]


@pytest.mark.parametrize("name", INVALID)
@folded("argument,value,allowed", lambda name, **_: INVALID[name])
def test_an_invalid_value_is_refused_with_what_is_allowed(
    name, argument, value, allowed, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)

    message = refusal(name, {argument: value}, allowed)
    assert argument in message
    assert any(words in message for words in ways_to_name(value)), message
    assert ALLOWS.search(message), message


@folded("name,given,message", together())
def test_arguments_that_are_invalid_together_are_refused(
    name, given, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    refusal(name, given, message)


@folded("function,arguments,message", OF_FUNCTIONS)
def test_arguments_that_do_not_match_are_refused(function, arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        function(*arguments)


@folded("case", all_cases())
def test_a_case_has_invalid_values_of_no_argument_that_does_not_exist(case):
    taken = {argument for invalid in invalid_values(case).values() for argument in invalid}
    own = {name for one in case.functions for name in one.invalid}

    assert case.invalid.keys() | own <= taken


@pytest.mark.parametrize("case", [one for one in all_cases() if one.algorithm], ids=repr)
@folded("name", NO_NAME)
def test_the_name_of_an_algorithm_is_a_word(case, name):
    refusal(case.algorithm.name, {"name": name}, "name")


def shared() -> Iterator[tuple[Any, Any, str]]:
    """List the arguments that an algorithm shares with a function; those of EMA are times."""
    for case in all_cases():
        if case.algorithm and case.algorithm.kind is not EMA:
            ours = inspect.signature(case.algorithm.kind).parameters
            for one in case.functions:
                for argument in inspect.signature(one.function).parameters.keys() & ours.keys():
                    yield case, one, argument


@folded("case,one,argument", shared())
def test_an_algorithm_and_its_function_raise_the_same_error(case, one, argument):
    ours = case.invalid_values(case.algorithm.kind)[argument]
    theirs = case.invalid_values(one.function, one.invalid)[argument]
    for value in ours:
        if repr(value) not in map(repr, theirs):
            continue
        error = error_of(case.algorithm.kind, {**case.algorithm.valid(), argument: value})

        assert error == error_of(one.function, {**one.valid(), argument: value})
        assert error[1].startswith((f"{argument}=", f"{argument} "))  # a tensor is not shown
        assert " must " in error[1]
        assert error[1].endswith(".")


def error_of(function: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[type, str]:
    """Return the error of a call."""
    with pytest.raises((TypeError, ValueError)) as caught:
        function(**arguments)
    return type(caught.value), str(caught.value)


def refusal(name: str, given: Mapping[str, Any], pattern: str) -> str:
    """Return the message with which a callable refuses arguments among valid ones."""
    with pytest.raises((TypeError, ValueError), match=pattern) as caught:
        CALLS[name].run({**CALLS[name].valid(), **given})
    message = str(caught.value)
    assert len(message.split()) <= LONGEST, message
    return message


def ways_to_name(value: Any) -> list[str]:
    """Return the ways in which a message may name a value: itself, or its type."""
    kind = type(value).__name__
    named = [repr(value), f"a {kind}", f"an {kind}", f"={kind} "]
    if isinstance(value, type):
        named.append(value.__name__)
    if isinstance(value, Tensor):
        named += [str(tuple(value.shape)), str(list(value.shape)), str(value.dtype)]
    if isinstance(value, (tuple, list)):
        named += [repr(tuple(value)), repr(list(value)), *(repr(v) for v in value)]
        named += [words for v in value for words in ways_to_name(v)]
        named += ["empty"] * (not value)
    if isinstance(value, Mapping):
        named += [words for v in value.values() for words in ways_to_name(v)]
    if isinstance(value, nn.Module):
        named.append(kind)
    return named
