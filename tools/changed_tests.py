"""Run the tests that the changes since a commit can reach: `make test-changed`.

python -m tools.changed_tests           # since main, committed or not
python -m tools.changed_tests HEAD -x   # of what is not committed; the options are pytest's
"""

import ast
import runpy
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "composable", "examples", "property_tests", "tests", "tools")
BY_ALL = {"conftest.py", "pyproject.toml", "constraints.txt", "composable/_lazy.py"}
SIMULATED = ("tests/gpu/", "tests/simgpu/")  # which `make simgpu` runs


@cache
def names(path: Path) -> tuple[dict[str, str], set[str]]:
    """Return what a file imports, by the names that it binds, and the full names that it uses."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if path.name != "__init__.py":  # imports for types alone change no result
        tree.body = [one for one in tree.body if not _is_for_types(one)]
    package, bound, used = path.relative_to(ROOT).parts[:-1], {}, set()
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            source = ".".join([*base, *filter(None, [node.module])])
            bound |= {one.asname or one.name: f"{source}.{one.name}" for one in node.names}
        elif isinstance(node, ast.Import):
            for one in node.names:
                top = one.name.partition(".")[0]
                bound |= {one.asname: one.name} if one.asname else {top: top}
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    for node in (one for one in nodes if id(one) not in inner):
        chain: list[str] = []
        while isinstance(node, ast.Attribute):
            chain, node = [node.attr, *chain], node.value
        if isinstance(node, ast.Name) and node.id in bound:
            used.add(".".join([bound[node.id], *chain]))
    return bound, used


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


@cache
def files(name: str) -> frozenset[Path]:
    """Return the files of a full name: of a name that a package exports, where it comes from."""
    path, parts = ROOT, name.split(".")
    for i, part in enumerate(parts if parts[0] in FOLDERS else ()):
        if (module := path / f"{part}.py").exists():
            return frozenset({module})
        if not (path / part).is_dir():
            init = path / "__init__.py"
            source = names(init)[0].get(part) if init.exists() else None
            return files(".".join([source, *parts[i + 1 :]])) if source else frozenset()
        path /= part
    return frozenset(path.rglob("*.py") if path != ROOT else ())


def reached(changed: Iterable[str]) -> list[str]:
    """Return the tests and the examples that use these files, by import, or by name in a string."""
    sources = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    needs = {
        path: {file for name in names(path)[1] for file in files(name)}
        | {folder / "conftest.py" for folder in path.parents}
        for path in sources
    }
    texts = {path: path.read_text(encoding="utf-8") for path in sources}
    found = {ROOT / one for one in changed}
    found |= {path for one in changed for path in sources if Path(one).name in texts[path]}
    size = 0
    while size != len(found):
        size = len(found)
        found |= {path for path in sources if not needs[path].isdisjoint(found)}
    tests = {path for path in found if path.name.startswith("test_") or path.suffix == ".md"}
    tests |= {path for path in found if ">>>" in texts.get(path, "")}
    return sorted(str(path.relative_to(ROOT)) for path in tests if path.exists())


def git(*arguments: str) -> list[str]:
    """Return the lines that git prints."""
    return subprocess.check_output(["git", *arguments], cwd=ROOT, text=True).splitlines()


def main() -> int:
    """Run pytest on what is reached, and return its exit status."""
    base, *options = sys.argv[1:] or ["main"]
    changed = git("diff", "--name-only", *git("merge-base", base, "HEAD"))
    changed += git("ls-files", "--others", "--exclude-standard")
    found = ["tests", "property_tests"] if BY_ALL & {*changed} else reached(changed)
    # Files that pytest is given by name are collected, whatever a conftest.py ignores.
    ignored = runpy.run_path(str(ROOT / "conftest.py"))["collect_ignore"]
    found = [one for one in found if one not in ignored and not one.startswith(SIMULATED)]
    print(*found, f"{len(changed)} changed files reach {len(found)}.", sep="\n", flush=True)
    run = [sys.executable, "-m", "pytest", *options, *found]
    status = subprocess.call(run) if found else 0
    return 0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else status  # pages without examples


if __name__ == "__main__":
    sys.exit(main())
