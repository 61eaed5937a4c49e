"""The exports of `composable.functional` and `composable.algorithms`: written from the modules.

A public module exports its public functions and classes; if it has others too, those in `__all__`.
Imports from private modules and from subpackages are written by hand, and stay.
"""

import ast
from pathlib import Path

PACKAGES = ("functional", "algorithms")
WIDTH = 100
HEAD = '''"""{docstring}"""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
'''
TAIL = """else:
    export_lazily(__name__)
"""


def exports(package: Path) -> str:
    """Return the text of a package's `__init__.py`, with every public module's exports."""
    path = package / "__init__.py"
    tree = ast.parse(path.read_text())
    modules = {f".{file.stem}": public_names(file) for file in package.glob("[!_]*.py")}
    listed = next(node for node in tree.body if isinstance(node, ast.If))
    by_hand: dict[str, list[str]] = {}
    for node in listed.body:
        assert isinstance(node, ast.ImportFrom)
        module = "." * node.level + (node.module or "")
        if module not in modules:
            by_hand.setdefault(module, []).extend(alias.name for alias in node.names)
    lines = [
        _import(module, name)
        for module, names in sorted((by_hand | modules).items())
        for name in sorted(names, key=_rank)
    ]
    relative = [line for line in lines if line.startswith("    from .")]
    absolute = [line for line in lines if line not in relative]
    text = "\n".join("".join(part) for part in (absolute, relative) if part)
    return HEAD.format(docstring=ast.get_docstring(tree)) + text + TAIL


def public_names(path: Path) -> list[str]:
    """Return what a module exports, without importing it."""
    found = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            found.append(node.name)
    return list(dict.fromkeys(found))  # an overloaded function has several definitions


def _import(module: str, name: str) -> str:
    line = f"    from {module} import {name} as {name}\n"
    if len(line) <= WIDTH + 1:
        return line
    return f"    from {module} import (\n        {name} as {name},\n    )\n"


def _rank(name: str) -> tuple[int, str]:
    """Sort as Ruff does: constants, then classes, then functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name
