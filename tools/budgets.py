"""Measure the package and the words of its documentation, against `budgets.json`.

    python -m tools.budgets            # every number, and its budget
    python -m tools.budgets --write    # make the numbers of today the budgets

A change that needs more raises a number in `budgets.json`, and gives the reason in its commit.
"""

import argparse
import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUDGETS = Path(__file__).with_name("budgets.json")
PACKAGE = ROOT / "composable"


def lines(path: Path) -> int:
    """Count the lines of a file, or of all Python files in a folder."""
    files = path.rglob("*.py") if path.is_dir() else [path]
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


GENERATED = re.compile(r"<!-- ([\w ]+): written by .*?<!-- end of \1 -->", re.S)
FENCE = re.compile(r" *(```+)")
DECISIONS = "design.md"


def words(text: str) -> int:
    r"""Count the words of a page outside of its code and its generated parts.

    Example:
        >>> words("Two words.\n\n    code\n\n```python\nmore\n```\n")
        2
    """
    count, fence, before = 0, "", ""
    for line in GENERATED.sub("", text).splitlines():
        mark = FENCE.match(line)
        if fence or mark:
            fence = "" if fence and line.strip() == fence else fence or (mark[1] if mark else "")
        elif line[:4].strip() or before.strip():  # otherwise indented code
            count += len(line.split())
            before = line
        if not line.strip():
            before = ""
    return count


def words_of_guides() -> int:
    """Count the words of all pages but the decisions and the cards of methods and loggers."""
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/migrate").glob("*.md")]
    return sum(words(page.read_text()) for page in pages if page.name != DECISIONS)


def package_of(module: str) -> str:
    """Return the package of a module: the second part of its name, or composable itself."""
    return module.split(".")[1] if "." in module else module


@cache
def trees() -> dict[str, ast.Module]:
    """Parse the modules of the package, by name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
            path.read_text(encoding="utf-8")
        )
        for path in PACKAGE.rglob("*.py")
    }


@cache
def all_imports() -> frozenset[tuple[str, str]]:
    """Return every import of a module by another, in functions too, as both modules."""
    found = set()
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
            else:
                names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            targets = [name for name in names if name in trees() and "." in name]
            found |= {(module, one) for one in targets}
    return frozenset(found)


def imports() -> frozenset[tuple[str, str]]:
    """Return every import of a module of another package."""
    return frozenset(pair for pair in all_imports() if len({*map(package_of, pair)}) > 1)


@cache
def arrows() -> frozenset[tuple[str, str]]:
    """Return which package imports which."""
    return frozenset((package_of(one), package_of(other)) for one, other in imports())


def reached(package: str) -> set[str]:
    """Return the packages that a package imports, directly or not."""
    found: set[str] = set()
    new = {package}
    while new := {other for one, other in arrows() if one in new} - found:
        found |= new
    return found


def floors() -> int:
    """Return the number of packages in the longest chain of imports."""

    @cache
    def height(package: str) -> int:
        below = [other for one, other in arrows() if one == package]
        return 1 + max((height(one) for one in below if package not in reached(one)), default=0)

    return max(height(one) for pair in arrows() for one in pair)


def public_definitions() -> Iterator[str]:
    """Yield the name of every public function and class of a module."""
    for tree in trees().values():
        for node in tree.body:
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name[0] == "_":
                continue
            if not any(ast.unparse(one) == "overload" for one in node.decorator_list):
                yield node.name


def measure() -> dict[str, int]:
    """Return every number."""
    packages = sorted(one for one in PACKAGE.iterdir() if (one / "__init__.py").exists())
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    private = {
        other
        for _, other in imports()
        if any(part.startswith("_") for part in other.split(".")[2:])
    }
    return {
        **{f"lines of composable/{one.name}": lines(one) for one in packages},
        "lines of composable": lines(PACKAGE),
        "lines of the tests": lines(ROOT / "tests") + lines(ROOT / "property_tests"),
        "lines of C++ of the simulated GPU": sum(
            len(one.read_text(encoding="utf-8").splitlines())
            for one in (ROOT / "tests/simgpu/src").iterdir()
        ),
        "lines of the longest file": max(map(lines, files)),
        "packages": len(packages),
        "floors": floors(),
        "imports of a package by another": len(arrows()),
        "packages in circles": sum(one.name in reached(one.name) for one in packages),
        "private modules that another package imports": len(private),
        "words of the README": len((ROOT / "README.md").read_text().split()),
        "words of the guides": words_of_guides(),
        "public names that are defined twice": sum(
            count > 1 for count in Counter(public_definitions()).values()
        ),
    }


def main() -> None:
    """Print the numbers, or write them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="make the numbers the budgets")
    found, budgets = measure(), json.loads(BUDGETS.read_text())
    for name, value in found.items():
        print(f"{value:7,} of {budgets.get(name, 0):7,}  {name}")
    if parser.parse_args().write:
        BUDGETS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
