"""What several files state about the project agrees."""

import ast
import re
from graphlib import TopologicalSorter
from importlib import metadata
from pathlib import Path

import pytest
import tomllib

import composable
from tools.budgets import all_imports
from tools.versions import FLOOR, records

ROOT = Path(__file__).resolve().parents[2]
FRAGMENTS = [path for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]


def test_the_version_is_the_same_everywhere():
    citation = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert citation is not None
    assert citation[1] == composable.__version__
    # If only this fails, the installed metadata is outdated: pip install -e .
    assert metadata.version("composable") == composable.__version__


def test_the_repository_is_cited_by_the_address_of_the_package():
    urls = dict(line.split(", ") for line in metadata.metadata("composable").get_all("Project-URL"))
    assert f"repository-code: {urls['Source']}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_tests_are_in_the_rooms_of_the_package():
    """Beside them: helpers (cases, support), what needs a GPU, and the project itself."""
    others = {"cases", "gpu", "project", "simgpu", "support"}
    rooms = {path.parent.name for path in (ROOT / "composable").glob("*/__init__.py")}
    found = {path.relative_to(ROOT / "tests").parts[0] for path in ROOT.glob("tests/**/*.py")}

    assert found - {"__init__.py"} <= rooms | others


def test_a_changelog_fragment_is_one_sentence_or_more():
    for path in FRAGMENTS:
        text = path.read_text().strip()
        assert re.match(r"[A-Z`]", text), f"{path.name}: begin with a capital or with code"
        assert text.endswith("."), f"{path.name}: end with a period"
        assert "\n\n" not in text, f"{path.name}: write one paragraph"


def test_each_floor_is_a_version_that_make_lowest_has_run():
    run = records()["lowest"]["packages"]
    floors = dict(FLOOR.findall((ROOT / "pyproject.toml").read_text()))
    apart = {"torch", "deepspeed", "liger-kernel", "azureml-mlflow"}  # not in its environment
    apart |= {"adlfs", "gcsfs"}
    for name, floor in floors.items() - {(one, floors[one]) for one in apart}:
        assert f"{run[name]}.".startswith(f"{floor}."), f"{name}>={floor} was run with {run[name]}"


# --- imports


PACKAGES = sorted(path.parent.name for path in (ROOT / "composable").glob("*/__init__.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_has_a_circle_inside(package):
    below = {}
    for pair in all_imports():
        if all(name.startswith(f"composable.{package}.") for name in pair):
            one, other = (name.split(".")[2] for name in pair)
            below.setdefault(one, set()).update({other} - {one})
    TopologicalSorter(below).prepare()  # raises a CycleError


def test_each_package_has_an_inner_contract():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = [one for one in contracts if one["type"] == "layers" and one["exhaustive"]]
    apart = [one for one in contracts if one["type"] == "independence"]
    held = {f"{name}.*" for one in layers for name in one["containers"]}
    held.update(name for one in apart for name in one["modules"])
    assert {f"composable.{name}.*" for name in PACKAGES} <= held


# Of named tuples, tensors and the standard library.
_PUBLIC = {"_exit", "_getframe", "_replace", "_version"}


@pytest.mark.parametrize("package", ["cli", "comparison", "recipes", "report", "testing"])
def test_reads_no_private_attribute_of_an_object_of_another_package(package):
    found = []
    for path in (ROOT / "composable" / package).glob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr):
                name, owner = node.attr, ast.unparse(node.value)
                defined = f"self.{name}" in text or f"def {name}(" in text
                if not (name in _PUBLIC or defined or owner in ("self", "cls", "super()")):
                    found.append(f"{path.name}:{node.lineno}: {owner}.{name}")
    assert found == []
