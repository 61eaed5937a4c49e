"""Every argument of every function and algorithm refuses invalid values by its name."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor, nn

import composable.functional as F
from tests.support.cases import Case, InvalidSets, all_cases
from tests.support.folded import folded
from tests.support.invalid import NO_NAME, Invalid

ALLOWS = ("must", "need", "give", "Give", "use", "Use", "write", "fit", "a time is", "is at least")
Call = Callable[..., Any]


@attrs.frozen
class Target:
    """A function or an algorithm, with valid arguments and with invalid values of each."""

    callable: Call
    valid: Callable[[], dict[str, Any]]
    invalid: Invalid
    sets: InvalidSets


def targets(case: Case) -> Iterator[Target]:
    """List the functions of a method, once each, and its algorithm."""
    tried = set()
    for one in case.functions:
        if one.function not in tried:
            tried.add(one.function)
            invalid = case.invalid_values(one.function, one.invalid)
            yield Target(one.function, one.valid, invalid, one.invalid_sets)
    if one := case.algorithm:
        invalid = case.invalid_values(one.kind)
        yield Target(one.kind, one.valid, invalid, one.invalid_sets)


def call(function: Call, arguments: Mapping[str, Any]) -> Any:
    """Call with arguments by name, also those of `*others`."""
    variable = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind is p.VAR_POSITIONAL
    ]
    if not variable:
        return function(**arguments)
    others = arguments[variable[0]]
    named = [value for name, value in arguments.items() if name not in variable]
    return function(*named, *(others if isinstance(others, tuple) else [others]))


TARGETS = {t.callable.__name__: t for case in all_cases() for t in targets(case)}
SETS = [(name, *one) for name, target in TARGETS.items() for one in target.sets]


@pytest.mark.parametrize("name", TARGETS)
def test_the_arguments_of_a_case_are_valid_and_each_has_invalid_values(name):
    target = TARGETS[name]

    assert all(target.invalid.values())
    call(target.callable, target.valid())  # so that what is refused below is the one value


@pytest.mark.parametrize("case", all_cases(), ids=repr)
def test_a_case_has_invalid_values_of_no_argument_that_does_not_exist(case):
    taken = {name for one in targets(case) for name in one.invalid}
    own = {name for one in case.functions for name in one.invalid}

    assert case.invalid.keys() | own <= taken


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TARGETS)
@folded("argument", lambda name: TARGETS[name].invalid)
def test_every_invalid_value_is_refused_by_the_name_of_its_argument(name, argument):
    target = TARGETS[name]
    for value in target.invalid[argument]:
        arguments = {**target.valid(), argument: value}
        message = refusal(target.callable, arguments, f"{argument}={value!r}")

        assert argument in message
        assert any(words in message for words in ways_to_name(value)), (value, message)
        assert any(words in message for words in ALLOWS), message


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "given", "message"), SETS)
def test_arguments_that_are_invalid_together_are_refused(name, given, message):
    target = TARGETS[name]

    with pytest.raises((TypeError, ValueError), match=message):
        call(target.callable, {**target.valid(), **given})


@pytest.mark.parametrize("case", [one for one in all_cases() if one.algorithm], ids=repr)
@folded("name", NO_NAME)
def test_the_name_of_an_algorithm_is_a_word(case, name):
    with pytest.raises((TypeError, ValueError), match="name"):
        case.algorithm.kind(**case.algorithm.valid(), name=name)


def refusal(function: Call, arguments: Mapping[str, Any], given: str) -> str:
    try:
        call(function, arguments)
    except (TypeError, ValueError) as error:
        return str(error)
    pytest.fail(f"{given} is taken")


def ways_to_name(value: Any) -> list[str]:
    """Return the ways in which a message may name a value: itself, or its type."""
    named = [repr(value), f"a {type(value).__name__}", f"an {type(value).__name__}"]
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
        named.append(type(value).__name__)
    return named


def test_documents_of_bool_are_refused():  # not in tests/functional, which checks annotations
    with pytest.raises(ValueError, match=r"integer dtype, not the shape \(2,\) and torch\.bool"):
        F.pack_documents([torch.tensor([True, False])], 4)
