"""Methods are added in five steps: those of the guides, done in a copy of the tree."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.campaign import FULL

ROOT = Path(__file__).parents[2]
COPIED = ["composable", "docs", "property_tests", "tests", "tools", "examples"]
FILES = ["README.md", "conftest.py", "pyproject.toml"]
GUIDES = ["contributing", "adding_a_gradient_method"]
STEPS = ["The function", "The algorithm", "The tests", "The case", "The card"]
WRITTEN = re.compile(r"^`([\w/.]+)`:\n\n(`{3,})\w+\n(.*?)^\2$", re.MULTILINE | re.DOTALL)

LAWS = [
    "tests/functional/test_flip.py",
    "property_tests/test_meaning.py",
    "docs/methods/flip.md",
    "composable/functional/flip.py",
    "composable/algorithms/flip.py",
    "tests/functional/test_centralize_gradients.py",
    "docs/methods/centralize_gradients.md",
    "composable/functional/centralize_gradients.py",
    "composable/algorithms/gradient_centralization.py",
]
"""The tests and the examples, of which those of the new methods are run."""

FURTHER_LAWS = [
    "property_tests/test_refused_arguments.py",
    "tests/project/test_pages.py",
    "tests/integrations/test_laws_of_loops.py",
    "property_tests/test_accumulation.py",
    "property_tests/test_algorithm_cases.py",
    "property_tests/test_effects.py",
    "property_tests/test_matrix.py",
    "property_tests/test_pairs.py",
    "property_tests/test_resume.py",
]
"""The general laws, which read the same tables of cases, in `make campaign`."""


def steps(guide: str = GUIDES[0]) -> dict[str, dict[str, str]]:
    """Read the steps of a guide: the files that each of them writes, by path."""
    text = (ROOT / f"docs/{guide}.md").read_text()
    sections = re.split(r"^## \d\. (.+)\n", text, flags=re.MULTILINE)[1:]
    return {
        title: {path: text for path, _, text in WRITTEN.findall(body)}
        for title, body in zip(sections[::2], sections[1::2], strict=True)
    }


def written() -> dict[str, str]:
    """Return the files of all guides, by path."""
    return {
        path: text
        for one in GUIDES
        for files in steps(one).values()
        for path, text in files.items()
    }


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Copy the repository, add the method, and write the generated lists."""
    copy = tmp_path_factory.mktemp("tree")
    for name in COPIED:
        ignored = shutil.ignore_patterns("_build", "*.png")
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, copy / name)
    for path, text in written().items():
        assert not (copy / path).exists()
        (copy / path).write_text(text)
    succeeds(copy, "tools.write_pages", *(() if FULL else ("--exports",)))
    return copy


def call(tree: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a Python module in a tree."""
    # OMP_NUM_THREADS: results on one thread and on two differ in the last bits.
    # PYTHONDONTWRITEBYTECODE: the first process compiles for all.
    variables = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=tree,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )


def succeeds(tree: Path, *command: str) -> str:
    """Run a Python module that must succeed, and return its output."""
    done = call(tree, *command)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def fails_with(tree: Path, message: str, *command: str) -> None:
    """Run a Python module that must fail with a message."""
    done = call(tree, *command)
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode
    assert message in said, said[-5000:]


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_has_five_steps_and_each_writes_one_file(guide):
    assert list(steps(guide)) == STEPS
    assert all(len(files) == 1 for files in steps(guide).values())


def test_methods_that_are_added_by_the_five_steps_pass_every_check(tree):
    python = [path for path in written() if path.endswith(".py")]
    exports = ["composable/functional/__init__.py", "composable/algorithms/__init__.py"]

    succeeds(tree, "ruff", "check", *python, *exports)
    succeeds(tree, "ruff", "format", "--check", *python, *exports)
    named = "(flip or entraliz or page) and not lternating"  # -k ignores case
    passed = succeeds(tree, "pytest", "-q", "-k", named, *LAWS, *(FURTHER_LAWS if FULL else ()))

    assert int(re.search(r"(\d+) passed", passed)[1]) > (60 if FULL else 10)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("step", "command", "message"),
    [
        (
            "The case",
            ["pytest", "-q", "property_tests/test_meaning.py"],
            "has no case: write tests/cases/flip.py",
        ),
        ("The card", ["tools.write_pages"], "flip has no card: write docs/methods/flip.md"),
    ],
)
def test_a_step_that_is_skipped_is_named_with_the_file_to_write(tree, step, command, message):
    (path,) = steps()[step]
    text = (tree / path).read_text()
    (tree / path).unlink()
    try:
        fails_with(tree, message, *command)
    finally:
        (tree / path).write_text(text)


@pytest.mark.campaign
def test_a_page_that_is_out_of_date_is_named_with_the_command_that_rewrites_it(tree):
    index = tree / "docs/methods/index.md"
    text = index.read_text()
    index.write_text(text.replace("mirrored at random", "turned at random"))
    try:
        command = "rewrite it with `python -m tools.write_pages`"
        fails_with(tree, command, "pytest", "-q", "tests/project/test_pages.py", "-k", "index")
    finally:
        index.write_text(text)
