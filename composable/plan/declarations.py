"""Validation of the members of a plan: algorithms and their declarations, callbacks, loggers."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

import attrs
from torch import Tensor

from composable.core.algorithm import Algorithm, FunctionAlgorithm, Stage
from composable.core.callback import Callback, FunctionCallback
from composable.core.destination import LoggerDestination
from composable.core.event import Event
from composable.core.state import State

One = TypeVar("One")
OneOrSeveral: TypeAlias = One | Iterable[One] | None
"""An argument that `as_list` converts."""

_FIELDS = {field.name for field in attrs.fields(State)}
_STATE_FIELDS = f"fields of State: {', '.join(sorted(_FIELDS))}"
_CLASSES = "classes of algorithms, or their names"


def as_list(given: Any) -> list[Any]:
    """Convert an argument that is None, one object or an iterable of objects to a list."""
    if given is None:
        return []
    if isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping, Tensor)):
        return list(given)
    return [given]


def as_algorithm(algorithm: object, context: str = "algorithms contains") -> Algorithm:
    """Return an algorithm, or wrap a plain function into one.

    Args:
        algorithm: An algorithm, or a function `(event, state) -> state`.
        context: The beginning of the error message.

    Raises:
        TypeError: It is neither, or its declarations are invalid.
    """
    if isinstance(algorithm, Algorithm):
        _check_declarations(algorithm)
        return algorithm
    if isinstance(algorithm, type):
        raise TypeError(class_message(context, algorithm))
    if isinstance(algorithm, Callback):
        argument = "loggers" if isinstance(algorithm, LoggerDestination) else "callbacks"
        raise TypeError(
            f"{context} {algorithm.name}, which is a callback; pass it in {argument}=[...]."
        )
    if callable(algorithm):
        name = getattr(algorithm, "__name__", type(algorithm).__name__)
        _check_call(name, algorithm, f"{name}(event, state)")
        return FunctionAlgorithm(algorithm)
    raise TypeError(
        f"{context} {algorithm!r}; pass an Algorithm, such as MixUp(), or a function "
        "(event, state) -> state."
    )


def as_observer(callback: object, context: str = "callback is") -> Callback:
    """Return a callback or a logger, or wrap a plain function into a callback.

    Args:
        callback: A callback, a class of callbacks, which is called without arguments, or a function
            `(event, state, logger) -> Control | None`.
        context: The beginning of the error message.

    Raises:
        TypeError: It is something else, or the class needs arguments.
    """
    callback = _instance(callback, Callback, context)
    if isinstance(callback, Callback):
        return callback
    if isinstance(callback, Algorithm):
        raise TypeError(
            f"{context} {callback!r}, which is an algorithm; pass it in algorithms=[...]."
        )
    if callable(callback):
        return FunctionCallback(callback)
    raise TypeError(
        f"{context} {callback!r}; pass a Callback, or a function "
        "(event, state, logger) -> Control | None."
    )


def as_callback(callback: object) -> Callback:
    """Return a callback, given as for `as_observer`.

    Raises:
        TypeError: It is something else, such as a logger, or the class needs arguments.
    """
    context = "callbacks contains"
    observer = as_observer(callback, context)
    if isinstance(observer, LoggerDestination):
        raise TypeError(f"{context} {observer.name}, which is a logger; pass it in loggers=[...].")
    return observer


def as_destination(logger: object) -> LoggerDestination:
    """Return a logger, also of a class, which is called without arguments.

    Raises:
        TypeError: It is not a `LoggerDestination`.
    """
    logger = _instance(logger, LoggerDestination, "loggers contains")
    if isinstance(logger, LoggerDestination):
        return logger
    raise TypeError(f"loggers contains {logger!r}; pass an instance of LoggerDestination.")


def _instance(given: object, kind: type, context: str) -> object:
    """Call a class of callbacks without arguments; return any other value as it is."""
    if not isinstance(given, type):
        return given
    if not issubclass(given, kind):
        raise TypeError(class_message(context, given))
    try:
        return given()
    except Exception as error:
        raise TypeError(
            f"{context} the class {given.__name__}, and {given.__name__}() failed: {error}; pass "
            f"an instance, {given.__name__}(...)."
        ) from error


def class_message(context: str, cls: type) -> str:
    """Say that an instance is needed where a class was given."""
    return f"{context} the class {cls.__name__}; pass an instance, {cls.__name__}()."


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
    for name in ("match", "apply"):
        _check_call(f"{cls}.{name}", getattr(algorithm, name), f"{name}(self, event, state)")


def _check_call(name: str, function: Callable[..., Any], call: str) -> None:
    """Check that a function takes an event and a state, in this order."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # one of C
        return
    given = list(signature.parameters)
    try:
        signature.bind("event", "state")
        fits = given[:2] != ["state", "event"]
    except TypeError:
        fits = False
    if not fits:
        raise TypeError(
            f"{name} takes ({', '.join(given)}), and is called with (event, state): define {call}. "
            "It logs by returning state.log({...}). It was passed as algorithm or in algorithms."
        )


def _is_class(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, type) and issubclass(value, Algorithm))


def _is_field(value: Any) -> bool:
    return isinstance(value, str) and value in _FIELDS


_SETS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "events": (lambda value: isinstance(value, Event), "members of Event"),
    "reads": (_is_field, _STATE_FIELDS),
    "writes": (_is_field, _STATE_FIELDS),
    "before": (_is_class, _CLASSES),
    "after": (_is_class, _CLASSES),
    "replaces": (lambda value: isinstance(value, str), "kinds of layers, as strings"),
}


def _check_set(name: str, given: Any, allowed: Callable[[Any], bool], members: str) -> None:
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable) or _is_class(given):
        raise TypeError(f"{name} is {given!r} and must be a set of {members}.")
    invalid = ", ".join(repr(value) for value in given if not allowed(value))
    if invalid:
        raise TypeError(f"{name} contains {{{invalid}}} and must be a set of {members}.")


def _check_reasons(name: str, given: Any) -> None:
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} is {given!r} and must map {_CLASSES}, to reasons.")
    for kind, reason in given.items():
        if not _is_class(kind) or not isinstance(reason, str) or not reason:
            raise TypeError(
                f"{name} contains {kind!r}: {reason!r} and must map {_CLASSES}, to reasons, such "
                "as {'CutMix': 'both mix the batch'}."
            )
