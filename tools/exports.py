"""The exports of `composable.functional` and `composable.algorithms`: written from the modules.

A public module exports what its `__all__` lists. Imports from private modules and from subpackages
are written by hand, and stay.
"""

import ast
from pathlib import Path

PACKAGES = ("functional", "algorithms")
WIDTH = 100


def exports(package: Path) -> str:
    """Return the text of a package's `__init__.py`, with every public module's exports.

    Raises:
        ValueError: A public module has no `__all__`.
    """
    path = package / "__init__.py"
    tree = ast.parse(path.read_text())
    absolute = package.name == "algorithms"
    prefix = f"composable.{package.name}" if absolute else ""
    modules = {file.stem: public_names(file) for file in package.glob("*.py")}
    modules = {name: names for name, names in modules.items() if not name.startswith("_")}
    nodes = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    written = {"." * node.level + (node.module or ""): node.names for node in nodes}
    by_hand = {
        module: [alias.name for alias in names]
        for module, names in written.items()
        if module.removeprefix(f"{prefix}.") not in modules
    }
    imports = by_hand | {f"{prefix}.{name}": names for name, names in modules.items()}
    lines = [_import(module, names) for module, names in sorted(imports.items())]
    names = sorted((n for names in imports.values() for n in names), key=_rank)
    listed = "".join(f'    "{name}",\n' for name in names)
    docstring = ast.get_docstring(tree)
    return f'"""{docstring}"""\n\n{"".join(lines)}\n__all__ = [\n{listed}]\n'


def public_names(path: Path) -> list[str]:
    """Read `__all__` of a module without importing it.

    Raises:
        ValueError: It has none.
    """
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    if path.stem.startswith("_"):
        return []
    raise ValueError(
        f"{path} has no __all__, which lists what it exports: add __all__ = [...], or begin the "
        "name of the file with an underscore."
    )


def _import(module: str, names: list[str]) -> str:
    names = sorted(names, key=_rank)
    line = f"from {module} import {', '.join(names)}\n"
    if len(line) <= WIDTH + 1:
        return line
    return f"from {module} import (\n{''.join(f'    {name},' + chr(10) for name in names)})\n"


def _rank(name: str) -> tuple[int, str]:
    """Sort as Ruff does: constants, then classes, then functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name
