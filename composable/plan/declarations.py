"""What an algorithm says about itself, checked when a plan or a combination is made of it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from composable.core.algorithm import Algorithm, FunctionAlgorithm, Stage
from composable.core.callback import Callback
from composable.core.event import Event
from composable.core.logger import LoggerDestination
from composable.core.state import State

__all__ = ["as_algorithm"]

_FIELDS = {field.name for field in attrs.fields(State)}
_A_FIELD = f"fields of State: {', '.join(sorted(_FIELDS))}"
_A_CLASS = "classes of algorithms, or their names"


def as_algorithm(algorithm: object) -> Algorithm:
    """An algorithm as it is, a plain function wrapped.

    Raises:
        TypeError: It is neither, or what it declares makes no sense.
    """
    if isinstance(algorithm, Algorithm):
        _check_declarations(algorithm)
        return algorithm
    if isinstance(algorithm, type):
        raise TypeError(
            f"algorithms has the class {algorithm.__name__}, where an instance is meant: write "
            f"{algorithm.__name__}()."
        )
    if isinstance(algorithm, Callback):
        raise TypeError(
            f"algorithms has {algorithm.name}, which is a callback: pass it in "
            f"{'loggers' if isinstance(algorithm, LoggerDestination) else 'callbacks'}=[...]."
        )
    if callable(algorithm):
        return FunctionAlgorithm(algorithm)
    raise TypeError(
        f"algorithms has {algorithm!r}: each must be an Algorithm, such as MixUp(), or a function "
        "(event, state) -> state."
    )


def _check_declarations(algorithm: Algorithm) -> None:
    cls = type(algorithm).__name__
    for name, (allowed, members) in _SETS.items():
        _check_set(f"{cls}.{name}", getattr(algorithm, name), allowed, members)
    for name in ("incompatible_with", "discouraged_with"):
        _check_reasons(f"{cls}.{name}", getattr(algorithm, name))
    if not isinstance(algorithm.stage, Stage):
        raise TypeError(
            f"{cls}.stage is {algorithm.stage!r} and must be a member of Stage, such as Stage.MIX."
        )
    parts = algorithm.parts
    if not isinstance(parts, tuple) or not all(isinstance(part, Algorithm) for part in parts):
        raise TypeError(f"{cls}.parts is {parts!r} and must be a tuple of algorithms.")
    if type(algorithm).apply is Algorithm.apply:
        raise TypeError(f"{cls} has no apply: implement apply(self, event, state) -> State.")


def _is_class(one: Any) -> bool:
    return isinstance(one, str) or (isinstance(one, type) and issubclass(one, Algorithm))


_SETS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "events": (lambda one: isinstance(one, Event), "members of Event"),
    "reads": (lambda one: isinstance(one, str) and one in _FIELDS, _A_FIELD),
    "writes": (lambda one: isinstance(one, str) and one in _FIELDS, _A_FIELD),
    "before": (_is_class, _A_CLASS),
    "after": (_is_class, _A_CLASS),
    "replaces": (lambda one: isinstance(one, str), "kinds of layers, as words"),
}


def _check_set(what: str, given: Any, allowed: Callable[[Any], bool], members: str) -> None:
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable) or _is_class(given):
        raise TypeError(f"{what} is {given!r} and must be a set of {members}.")
    strange = ", ".join(repr(one) for one in given if not allowed(one))
    if strange:
        raise TypeError(f"{what} has {{{strange}}} and must be a set of {members}.")


def _check_reasons(what: str, given: Any) -> None:
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} is {given!r} and must be a mapping from {_A_CLASS}, to reasons.")
    for kind, why in given.items():
        if not _is_class(kind) or not isinstance(why, str) or not why:
            raise TypeError(
                f"{what} has {kind!r}: {why!r} and must be a mapping from {_A_CLASS}, to reasons: "
                "{'CutMix': 'both mix the batch'}."
            )
