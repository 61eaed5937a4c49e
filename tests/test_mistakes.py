"""Every argument of every function and algorithm answers every kind of mistake by its name."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from torch import Tensor, nn

import composable.algorithms as A
import composable.functional as F
from composable import Algorithm
from composable.functional import images
from tests import mistakes

ALLOWS = ("must", "need", "give", "Give", "use", "Use", "write", "fit", "a time is", "is at least")
Call = Callable[..., Any]


def functions(module: Any) -> dict[str, Call]:
    found = {name: getattr(module, name) for name in module.__all__}
    return {name: value for name, value in found.items() if inspect.isfunction(value)}


def algorithms() -> dict[str, type[Algorithm]]:
    found = {name: getattr(A, name) for name in A.__all__}
    return {name: value for name, value in found.items() if inspect.isclass(value)}


def call(function: Call, arguments: Mapping[str, Any]) -> Any:
    """Call with arguments by name, also what has none: `*others`."""
    kinds = {name: p.kind for name, p in inspect.signature(function).parameters.items()}
    if inspect.Parameter.VAR_POSITIONAL in kinds.values():
        return function(*arguments.values())
    return function(**arguments)


TABLES = {
    **{f"functional.{name}": (f, mistakes.FUNCTIONS[name]) for name, f in functions(F).items()},
    **{f"images.{name}": (f, mistakes.IMAGES[name]) for name, f in functions(images).items()},
    **{
        name: (f, (lambda good=mistakes.ALGORITHMS[name][0]: good, mistakes.ALGORITHMS[name][1]))
        for name, f in algorithms().items()
    },
}


ARGUMENTS = [(name, argument) for name, (_, (_, wrong)) in TABLES.items() for argument in wrong]


@pytest.mark.parametrize("name", TABLES)
def test_each_argument_has_its_mistakes(name):
    function, (good, wrong) = TABLES[name]
    arguments = set(inspect.signature(function).parameters) - {"name"}

    assert arguments == set(wrong), "tests/mistakes.py has a table of what is wrong for each"
    assert all(wrong.values())
    call(function, good())  # so that what is refused below is the one mistake


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_every_mistake_is_refused_by_name(name, argument):
    function, (good, wrong) = TABLES[name]
    for value in wrong[argument]:
        message = refusal(function, {**good(), argument: value}, f"{argument}={value!r}")

        assert argument in message
        assert any(words in message for words in ways_to_name(value)), (value, message)
        assert any(words in message for words in ALLOWS), message


def refusal(function: Call, arguments: Mapping[str, Any], mistake: str) -> str:
    try:
        call(function, arguments)
    except (TypeError, ValueError) as error:
        return str(error)
    pytest.fail(f"{mistake} is taken")


def ways_to_name(value: Any) -> list[str]:
    """A message may tell a value, or of what kind it is."""
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
