"""Which packages a file of tests or examples touches, beside those of every test."""

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
OURS = {"benchmarks", "composable", "examples", "property_tests", "tests", "tools"}
IN_EVERY_TEST = {"attrs", "einops", "hypothesis", "jaxtyping", "numpy", "pytest", "torch"}
"""A change of these is seen by every test."""
SCRIPTS = {path.stem for path in (*ROOT.glob("examples/*.py"), *ROOT.glob("benchmarks/*.py"))}
NOT_FOREIGN = {
    *OURS,
    *SCRIPTS,
    *IN_EVERY_TEST,
    *sys.stdlib_module_names,
    "docs",
    "typing_extensions",
}
EXAMPLE = re.compile(
    r"^\s*(?:>>> |\.\.\. )?(?:from (?=\w[\w.]* import )|import (?=[\w.]+(?: as \w+)?$))(\w+)",
    re.MULTILINE,
)


def foreign_packages(path: Path) -> set[str]:
    """Return the packages that a file imports, and the files of tests and examples that it imports.

    README.md counts as well: its first example is what a user runs first.
    """
    found: set[str] = {"README.md"} & {path.name}
    files, seen = [path], {path}
    while files:
        names = _imported(files.pop())
        found |= {name.partition(".")[0] for name in names} - NOT_FOREIGN
        new = {one for name in names for one in _files(name)} - seen
        files, seen = [*files, *new], seen | new
    return found


@functools.cache
def _imported(path: Path) -> frozenset[str]:
    """Return the full names of the modules that a file imports, also within functions."""
    text = path.read_text()
    names = set(EXAMPLE.findall(text))
    for node in ast.walk(ast.parse(text)) if path.suffix == ".py" else ():
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "importorskip":
            names |= {one.value for one in node.args if isinstance(one, ast.Constant)}
    return frozenset(names)


def _files(name: str) -> Iterator[Path]:
    """Yield the files of a module of the tests, given its name or the name of a part of it."""
    parts = name.split(".")
    if parts[0] in OURS - {"composable"}:
        paths = (ROOT.joinpath(*one).with_suffix(".py") for one in (parts, parts[:-1]))
        yield from (path for path in paths if path.exists())
