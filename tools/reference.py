"""The reference tables of the guides, from the docstrings of what they list."""

import argparse
import ast
import inspect
from collections.abc import Iterable

import composable.callbacks
from composable import Event, State
from composable.cli.launch import add_launch
from tools.trainer_arguments import descriptions

SAVING = (
    *("save_folder", "save_interval", "save_filename", "save_num_checkpoints_to_keep"),
    *("save_best", "save_best_mode", "load_best_at_end", "save_overwrite", "save_weights_only"),
    *("save_ignore_keys", "save_in_background", "save_error"),
)
LOADING = ("autoresume", "load_path", "load_ignore_keys", "load_weights_only")
NOT_LISTED = ("ExportError", "UnsavedCheckpointWarning")


def event_table() -> list[str]:
    """Render the events, in their order."""
    docs = docstrings_of_attributes(Event)
    return _table("event", ((event.name, docs[event.name]) for event in Event))


def state_table() -> list[str]:
    """Render the fields of a state."""
    docs = docstrings_of_attributes(State)
    names = [name for name in inspect.get_annotations(State) if name in docs]
    return _table("field", ((name, docs[name]) for name in names))


def callback_table() -> list[str]:
    """Render the callbacks, with the first sentences of their docstrings."""
    names = [name for name in composable.callbacks.__all__ if name not in NOT_LISTED]
    first = ((name, _first_paragraph(getattr(composable.callbacks, name))) for name in names)
    return _table("callback", first)


def argument_table(names: Iterable[str]) -> list[str]:
    """Render arguments of the `Trainer`."""
    docs = descriptions()
    return _table("argument", ((name, _one_line(docs[name])) for name in names))


def launch_table() -> list[str]:
    """Render the options of `composable launch`."""
    commands = argparse.ArgumentParser().add_subparsers()
    add_launch(commands)
    actions = commands.choices["launch"]._actions
    return _table("option", ((_flags(one), one.help or "") for one in actions if _flags(one)))


def _flags(action: argparse.Action) -> str:
    shown = [flag for flag in action.option_strings if "-" not in flag.lstrip("-")]
    return "" if action.dest == "help" else ", ".join(shown).replace(", ", "`, `")


def docstrings_of_attributes(cls: type) -> dict[str, str]:
    """Return the string after each attribute in the source of a class, in one line."""
    (tree,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for node, following in zip(tree.body, tree.body[1:], strict=False):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        text = following.value if isinstance(following, ast.Expr) else None
        if isinstance(target, ast.Name) and isinstance(text, ast.Constant):
            found[target.id] = _one_line(str(text.value))
    return found


def _first_paragraph(item: object) -> str:
    return _one_line((inspect.getdoc(item) or "").partition("\n\n")[0])


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def _table(heading: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    return [
        f"| {heading} | description |",
        "|---|---|",
        *(f"| `{name}` | {text} |" for name, text in rows),
    ]
