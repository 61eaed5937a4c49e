"""Old import paths: they work, and warn."""

import importlib

import pytest

from composable._moved import MOVED, RENAMED
from tests.support.commands import run_python

PATHS = [
    (old, name, new)
    for old, names in MOVED.items()
    for name, new in (
        [(name, names) for name in importlib.import_module(names).__all__]
        if isinstance(names, str)
        else names.items()
    )
]


@pytest.mark.parametrize(("old", "name", "new"), PATHS)
def test_an_old_path_returns_the_same_object_and_warns_at_the_import(old, name, new):
    with pytest.warns(DeprecationWarning, match=f"import {name} from {new}") as record:
        exec(compile(f"from {old} import {name} as found", "users.py", "exec"), names := {})
    assert names["found"] is getattr(importlib.import_module(new), name)
    assert [one.filename for one in record] == ["users.py"]


@pytest.mark.parametrize("old", MOVED)
def test_an_old_module_has_no_other_names_and_no_file(old):
    with pytest.raises(ImportError, match="anything_else"):
        exec(f"from {old} import anything_else")
    with pytest.raises(AttributeError, match=f"{old}.*__file__"):
        importlib.import_module(old).__file__  # noqa: B018


@pytest.mark.parametrize("name", ["per_group", "per_option"])
def test_an_old_module_does_not_hide_the_function_of_its_name(name):
    importlib.import_module(f"composable.optim.{name}")

    assert callable(getattr(importlib.import_module("composable.optim"), name))


def test_an_old_module_is_imported_first():
    code = "import composable.trainer.best as best; best.Best"
    _, error = run_python("-W", "error::DeprecationWarning", "-c", code, status=1)
    assert "DeprecationWarning: composable.trainer.best goes with the next release" in error


NAMES = [(module, old, new) for module, names in RENAMED.items() for old, new in names.items()]


@pytest.mark.parametrize(("module", "old", "new"), NAMES)
def test_an_old_name_returns_the_same_object_and_warns(module, old, new):
    package = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=f"{old} goes with .*: use {new}") as record:
        found = getattr(package, old)
    assert found is getattr(package, new)
    assert [one.filename for one in record] == [__file__]
    with pytest.raises(AttributeError, match=f"{module}.*has no attribute 'nothing'"):
        package.nothing  # noqa: B018
