"""Measure the package and the words of its documentation, against `budgets.json`.

    python -m tools.budgets            # every number, its budget, and its target
    python -m tools.budgets --write    # make the numbers of today the budgets

A change that needs more raises a number in `budgets.json`, and gives the reason in its commit.
Numbers with a target have both there: `now`, which a test holds, and `target`. Times are printed,
not tested.
"""

import argparse
import ast
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tools.run_paths import cpu_times, files_of, trace_batches

ROOT = Path(__file__).parents[1]
BUDGETS = Path(__file__).with_name("budgets.json")
PACKAGE = ROOT / "composable"


def lines(path: Path) -> int:
    """Count the lines of a file, or of all Python files in a folder."""
    files = path.rglob("*.py") if path.is_dir() else [path]
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
parse = cache(ast.parse)


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the docstrings of a module, of its definitions, and of its values."""
    for node in ast.walk(tree):
        for one in node.body if isinstance(node, DEFINITIONS) else ():
            value = one.value if isinstance(one, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value


def code_lines(text: str) -> int:
    r"""Count the lines of a module without docstrings, comments and blanks.

    Example:
        >>> code_lines("'A module.'\n\n# One.\none = (\n    1\n)\n")
        3
    """
    told = {n for one in docstrings(parse(text)) for n in range(one.lineno, end_of(one))}
    strings = [
        one for one in ast.walk(parse(text)) if isinstance(one, (ast.Constant, ast.JoinedStr))
    ]
    inside = {n for one in strings for n in range(one.lineno + 1, end_of(one))}
    rows = enumerate(map(str.strip, text.splitlines()), start=1)
    used = {n for n, row in rows if n in inside or (row and row[0] != "#")}
    return len(used - told)


def end_of(node: ast.expr) -> int:
    """Return the number of the line after a node."""
    return (node.end_lineno or node.lineno) + 1


@cache
def code() -> dict[str, int]:
    """Return the lines of code of each module, by its name in the package without `.py`."""
    return {
        path.relative_to(PACKAGE).with_suffix("").as_posix(): code_lines(
            path.read_text(encoding="utf-8")
        )
        for path in PACKAGE.rglob("*.py")
    }


def code_of(*names: str) -> int:
    """Return the lines of code of modules, and of packages, whose names end with a slash."""
    return sum(code()[one] for one in code() if one in names or f"{one.split('/')[0]}/" in names)


METHODS = ("functional/", "algorithms/", "optim/", "models/", "recipes/")
LOOP = (
    *("loop", "step", "microbatches", "trainer", "build", "run", "session", "training_data"),
    *("evaluation", "guards", "parameters"),
)
LOSSES = ("losses/", "batches/divisors", "batches/source", "engines/shares", "engines/sums")

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
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): parse(
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


def inner_imports(package: str) -> dict[str, set[str]]:
    """Return which modules of a package import which of it."""
    prefix = f"composable.{package}."
    found: dict[str, set[str]] = {name: set() for name in trees() if name.startswith(prefix)}
    for one, other in all_imports():
        if {one, other} <= found.keys() and one != other:
            found[one].add(other)
    return found


def closure(arrows: dict[str, set[str]], start: str) -> frozenset[str]:
    """Return what is reached from a module."""
    found: set[str] = set()
    new = {start}
    while new := {other for one in new for other in arrows[one]} - found:
        found |= new
    return frozenset(found)


def circles(arrows: dict[str, set[str]]) -> int:
    """Return the number of groups of modules that import one another.

    Example:
        >>> circles({"a": {"b"}, "b": {"a", "c"}, "c": set()})
        1
    """
    reached = {one: closure(arrows, one) for one in arrows}
    return len({reached[one] for one in arrows if one in reached[one]})


def chain(arrows: dict[str, set[str]]) -> int:
    """Return the length of the longest chain of imports, in which no module comes twice.

    Example:
        >>> chain({"a": {"b"}, "b": {"c"}, "c": set()})
        3
    """
    reached = {one: closure(arrows, one) for one in arrows}

    @cache
    def length(one: str) -> int:
        above = [length(other) for other in arrows[one] if one not in reached[other]]
        return 1 + max(above, default=0)

    return max(map(length, arrows), default=0)


ORDERED = re.compile(r'^containers = \["composable\.(\w+)"\]', re.MULTILINE)
"""The package whose modules an import contract puts in an order."""
LONG = 5


def without_contract() -> list[str]:
    """Return the packages with a long chain of imports of their own, which no contract orders."""
    ordered = ORDERED.findall((ROOT / "pyproject.toml").read_text())
    packages = {package_of(one) for one in trees() if "." in one}
    return [p for p in packages - {*ordered} if chain(inner_imports(p)) >= LONG]


def told() -> Iterator[str]:
    """Yield the docstrings of the package and the pages of the documentation."""
    yield from (str(one.value) for tree in trees().values() for one in docstrings(tree))
    pages = (path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)
    yield from (page.read_text(encoding="utf-8") for page in pages)


def count_words(pattern: str, texts: Iterable[str]) -> int:
    """Count the matches of a pattern."""
    return sum(len(re.findall(rf"\b{pattern}\b", text)) for text in texts)


def count_variables(name: str) -> int:
    """Count the places of the package that bind or read a variable of this name."""
    nodes = (node for tree in trees().values() for node in ast.walk(tree))
    return sum(isinstance(node, ast.Name) and node.id == name for node in nodes)


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


def measure_table() -> dict[str, int]:
    """Return the numbers that have a target."""
    found = {
        "code lines": sum(code().values()),
        "code lines without methods and optimizers": sum(code().values()) - code_of(*METHODS),
        "code lines of what loops": code_of(*(f"trainer/{one}" for one in LOOP)),
        "code lines of losses and shares": code_of(*LOSSES),
    }
    for what, codes in trace_batches().items():
        found[f"frames of {what}"] = len(codes)
        found[f"files of {what}"] = len(set(files_of(codes)))
    packages = {package_of(one) for one in trees() if "." in one}
    words = list(told())
    return {
        **found,
        "circles inside packages": sum(circles(inner_imports(one)) for one in packages),
        f"packages with a chain of {LONG} imports and no contract": len(without_contract()),
        "lines of the tests": lines(ROOT / "tests") + lines(ROOT / "property_tests"),
        "words: those of, that of": count_words(r"(?:[Tt]hose|[Tt]hat)\s+of", words),
        "words: own": count_words("own", words),
        "variables of the name one": count_variables("one"),
    }


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
        **measure_table(),
    }


Row = dict[str, float]
"""A budget, `now`, and its target, if it has one."""


def budgets() -> dict[str, Row]:
    """Return the budgets by name."""
    read: dict[str, Any] = json.loads(BUDGETS.read_text())
    return {name: one if isinstance(one, dict) else {"now": one} for name, one in read.items()}


def write(found: dict[str, int]) -> None:
    """Make numbers the budgets; the targets stay."""
    rows = {name: {**budgets().get(name, {}), "now": value} for name, value in found.items()}
    plain = {name: one if "target" in one else one["now"] for name, one in rows.items()}
    BUDGETS.write_text(json.dumps(plain, indent=2) + "\n")


TIMES = {
    "ms of CPU of a save of a tiny model": 2.9,
    "ms of CPU of a resume of a tiny model": 6.7,
    "minutes of make test, on two idle cores: as timed": 10,
}
"""The targets of times, which depend on the machine."""


def main() -> None:
    """Print the numbers, or write them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="make the numbers the budgets")
    writes = parser.parse_args().write
    found, allowed = measure(), budgets()
    for name, value in found.items():
        row = allowed.get(name, {"now": 0})
        target = f"{row['target']:7,}" if "target" in row else " " * 7
        print(f"{value:7,} of {row['now']:7,}  {target}  {name}")
    times = cpu_times()
    for name, limit in TIMES.items():
        print(f"{times.get(name, '-'):>7}    {'':7}  {limit:7}  {name}")
    if writes:
        write(found)


if __name__ == "__main__":
    main()
