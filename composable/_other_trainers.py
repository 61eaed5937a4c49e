"""Names of other trainers: Composer, Lightning, Hugging Face's Trainer, Keras, timm's scripts.

Errors about an unknown name look in `advice.json` for what to write in this library, or why there
is nothing to write. A key of this file has the names with one advice. In an advice, braces enclose
the names of this library: an argument of the `Trainer` by itself, `trainer.` and `state.` before
their members, and others by the module to import them from. A test looks each of them up.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, wraps
from typing import Any, TypeVar

_SIMILAR = 0.75

F = TypeVar("F", bound=Callable[..., Any])
Value = TypeVar("Value")


class Table(Mapping[str, Value]):
    """A table of the advice, which is read at its first use: most runs need none."""

    def __init__(self, read: Callable[[], Mapping[str, Value]]) -> None:
        self._read = read

    def __getitem__(self, name: str) -> Value:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


@cache
def _tables() -> Mapping[str, Any]:
    from importlib.resources import files  # only for an error

    from composable._support.strict_json import load

    raw = files("composable").joinpath("advice.json").read_bytes()
    return {name: _by_name(table) for name, table in load(raw, "advice.json").items()}


def _by_name(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the advice on each name; tables of tables have one for each class or library."""
    if any(isinstance(value, dict) for value in table.values()):
        return {name: _by_name(value) for name, value in table.items()}
    return {name: text for names, text in table.items() for name in names.split()}


def _hooks() -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    return {
        library: {name: tuple(ours.split()) for name, ours in hooks.items()}
        for library, hooks in _tables()["hooks"].items()
    }


ARGUMENTS: Mapping[str, str] = Table(lambda: _tables()["arguments"])
"""The arguments of other trainers, and of their methods that train."""

METHODS: Mapping[str, str] = Table(lambda: _tables()["methods"])
"""The methods and attributes of other trainers."""

STATE: Mapping[str, str] = Table(lambda: _tables()["state"])
"""The fields and methods of the states of other trainers."""

CLASSES: Mapping[str, str] = Table(lambda: _tables()["classes"])
"""The classes and functions of other trainers."""

METRICS: Mapping[str, str] = Table(lambda: _tables()["metrics"])
"""The metrics that other trainers log."""

CLASS_ARGUMENTS: Mapping[str, Mapping[str, str]] = Table(lambda: _tables()["class_arguments"])
"""Arguments of the classes of other trainers that have the name of one here."""

HOOKS: Mapping[str, Mapping[str, tuple[str, ...]]] = Table(_hooks)
"""The hooks of other libraries whose names differ, with the methods to define in their place."""


def as_text(advice: str) -> str:
    """Return an advice without the braces around the names of this library."""
    return advice.replace("{", "").replace("}", "")


def advice_on(name: str, *tables: Mapping[str, str]) -> str:
    """Return a semicolon and the advice of the first table that has the name, or nothing."""
    found = next((table[name] for table in tables if name in table), None)
    return "" if found is None else f"; {as_text(found)}"


def advice_on_argument(name: str, function: Callable[..., Any], *tables: Mapping[str, str]) -> str:
    """Return the advice on an argument that a function does not take, or its most similar one."""
    if advice := advice_on(name, *tables):
        return f"{advice}."
    return suggestion(name, inspect.signature(function).parameters)


def suggestion(name: str, names: Iterable[str]) -> str:
    """Return the question whether the most similar name is meant, if one is similar.

    Example:
        >>> from composable._other_trainers import suggestion
        >>> suggestion("seeds", ["seed", "device"])
        "; did you mean 'seed'?"
    """
    from difflib import get_close_matches  # only for an error

    lower = {one.lower(): one for one in names}
    close = get_close_matches(name.lower(), lower, 1, _SIMILAR)
    return f"; did you mean {lower[close[0]]!r}?" if close else ""


def explain_call(*tables: Mapping[str, str], otherwise: str = "") -> Callable[[F], F]:
    """Make a decorator that adds the advice on an unexpected argument to its error.

    Args:
        tables: Where to look up the argument; another is compared with the signature's.
        otherwise: The advice on a call that fails for another argument.
    """

    def decorate(function: F) -> F:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                trace = error.__traceback__
                if trace is None or trace.tb_next is not None:  # the function itself raised it
                    raise
                unexpected = re.search(r"unexpected keyword argument '(\w+)'", str(error))
                text, advice = str(error).rstrip("."), ""
                if unexpected:  # without the suggestion of Python 3.13
                    text = text[: unexpected.end()]
                    advice = advice_on_argument(unexpected[1], function, *tables)
                advice = advice or (otherwise and f"; {otherwise}.")
                if not advice:
                    raise
                raise TypeError(f"{text}{advice}") from None

        return called  # type: ignore[return-value]

    return decorate


def explain_arguments(cls: type) -> None:
    """Let the constructor of a class of this library advise on unknown arguments."""
    if cls.__module__.startswith("composable.") and "__init__" in vars(cls):
        bases = [kind.__name__ for kind in reversed(cls.__mro__)]
        advice = Table(lambda: {n: t for b in bases for n, t in CLASS_ARGUMENTS.get(b, {}).items()})
        cls.__init__ = explain_call(advice)(cls.__init__)  # type: ignore[misc]


def explain_attribute(owner: Any, name: str, table: Mapping[str, str]) -> Any:
    """Raise the AttributeError of a missing attribute, with advice: for `__getattr__`.

    A property that raised an AttributeError raises it again.
    """
    if hasattr(type(owner), name):
        return object.__getattribute__(owner, name)
    raise AttributeError(
        f"{type(owner).__name__!r} object has no attribute {name!r}{advice_on(name, table)}",
        name=name,
        obj=owner,
    )
