"""The arguments of the Trainer in groups, as tables: from their classes and docstrings."""

import inspect
import re

import attrs

from composable import Trainer
from composable.trainer.options import TrainerOptions


def argument_tables() -> list[str]:
    """Render a table for each group."""
    parameters = inspect.signature(Trainer).parameters
    lines = []
    for group in reversed(TrainerOptions.__bases__):
        text = inspect.getdoc(group) or ""
        about = text.partition("\n")[0]
        lines += [f"### {group.__name__.removesuffix('Options')}", "", about, ""]
        lines += ["| argument | default | what it is |", "|---|---|---|"]
        described = _descriptions(text)
        for field in attrs.fields(group):
            default = _shown(parameters[field.name].default)
            lines.append(
                f"| `{field.name}` | {default} | {_first_sentence(described[field.name])} |"
            )
        lines.append("")
    return lines[:-1]


def descriptions() -> dict[str, str]:
    """Return the description of each argument, by name."""
    return _descriptions(inspect.getdoc(TrainerOptions) or "")


def _descriptions(text: str) -> dict[str, str]:
    """Return the description of each argument of a docstring, by name."""
    section = text.partition("Args:\n")[2].partition("\n\n")[0]
    entries = re.split(r"^    (?=\w+: )", section, flags=re.MULTILINE)[1:]
    split = (entry.split(": ", 1) for entry in entries)
    return {name: " ".join(text.split()) for name, text in split}


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", text)[0].replace("|", r"\|")


def _shown(default: object) -> str:
    if default is inspect.Parameter.empty:
        return ""
    plain = isinstance(default, (bool, int, str, tuple, type(None)))
    return f"`{default if plain else str(default)!r}`"
