"""The tables of the migration guides: the names of another trainer, and what to write instead.

The advice is the errors': `composable/advice.json`.
"""

import inspect
import re
from collections.abc import Collection, Iterator
from importlib import import_module

from composable import State, Trainer
from composable._other_trainers import (
    ARGUMENTS,
    CLASS_ARGUMENTS,
    CLASSES,
    METHODS,
    METRICS,
    STATE,
)
from tests.support.other_trainers import names

HEADINGS = {
    "arguments": "Arguments",
    "methods": "Methods and attributes",
    "state": "Fields of the state",
    "classes": "Classes and functions",
    "class arguments": "Arguments of classes",
    "metrics": "Metrics",
}
ADVICE = {
    "arguments": ARGUMENTS,
    "methods": METHODS,
    "state": STATE,
    "classes": CLASSES,
    "class arguments": {
        f"{kind}.{name}": advice
        for kind, table in CLASS_ARGUMENTS.items()
        for name, advice in table.items()
    },
    "metrics": METRICS,
}
PACKAGES = ("", ".algorithms", ".callbacks", ".functional", ".loggers", ".models", ".optim")

_CALL = r"\w*(?:\([^() ]*\))?"
_CODE = re.compile(
    rf"\w+=(?:'[^']*'|[\w.]+)|'[^']*'|[\w-]*[./_][\w/-]*{_CALL}(?:\.{_CALL})*(?:=[\w.]+)?|\w+\(\)"
)


def tables(library: str) -> list[str]:
    """Render the tables of a guide."""
    lines: list[str] = []
    for kind, heading in HEADINGS.items():
        if listed := names(library, kind):
            lines += [f"### {heading}", "", *_table(kind, listed), ""]
    return lines[:-1]


def _table(kind: str, listed: Collection[str]) -> Iterator[str]:
    known = ADVICE[kind]
    by_advice: dict[str, list[str]] = {}
    for name in listed:
        if name in known:
            by_advice.setdefault(known[name], []).append(name)
    yield "| theirs | here |"
    yield "|---|---|"
    for advice, theirs in by_advice.items():
        yield f"| {_listed(theirs)} | {as_markdown(advice)} |"
    if same := [name for name in listed if name not in known]:
        yield ""
        yield f"The same here: {_listed(same)}."


def _listed(several: Collection[str]) -> str:
    return ", ".join(f"`{name}`" for name in several)


def is_ours(kind: str, name: str) -> bool:
    """Return whether a name that has no advice is one of this library."""
    match kind:
        case "arguments":
            return name in inspect.signature(Trainer).parameters
        case "methods":
            return hasattr(Trainer, name)
        case "state":
            return hasattr(State, name) or name in inspect.get_annotations(State)
    modules = [import_module(f"composable{package}") for package in PACKAGES]
    return any(name in module.__all__ for module in modules)


def as_markdown(advice: str) -> str:
    """Return an advice as Markdown, with its code marked.

    Example:
        >>> as_markdown("pass {device}, such as {composable.optim.cosine}(warmup='1ep')")
        "pass `device`, such as `composable.optim.cosine(warmup='1ep')`"
    """
    shown, rest = "", advice
    while (begin := rest.find("{")) >= 0:
        end = _end_of_code(rest, begin)
        shown += f"{_mark(rest[:begin])}`{re.sub('[{}]', '', rest[begin:end])}`"
        rest = rest[end:]
    return shown + _mark(rest)


def _end_of_code(text: str, begin: int) -> int:
    """Return the end of the code that begins at a brace: calls and assignments belong to it."""
    depth = 0
    for place in range(begin, len(text)):
        letter = text[place]
        if depth == 0 and letter in " ;:,":
            return place
        depth += (letter in "([{") - (letter in ")]}")
    return len(text)


def _mark(prose: str) -> str:
    return _CODE.sub(lambda code: f"`{code[0]}`", prose)
