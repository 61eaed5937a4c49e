"""Every cell of the tables is tested: a yes by its runs, a no by its error."""

import importlib
from pathlib import Path

import pytest

from tests.integrations.table import cells
from tests.support.integrations import FEATURES, LOOPS


@pytest.mark.parametrize("loop", LOOPS)
def test_each_loop_is_tested_on_every_algorithm(loop):
    source = (Path(__file__).parent / LOOPS[loop]).read_text()

    assert f'"{loop}"' in source
    assert "works_in(" in source
    assert "refused_in(" in source


@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_is_tested_in_every_loop(feature):
    shown = {
        loop: cell for (loop, row), cell in cells("features", "features").items() if row == feature
    }

    assert shown.keys() == LOOPS.keys()
    assert {loop for loop, cell in shown.items() if cell.startswith("yes")} == FEATURES[
        feature
    ].keys()
    for loop, test in FEATURES[feature].items():
        file, name = test.split("::")
        module = importlib.import_module(f"tests.integrations.{file.removesuffix('.py')}")
        loops = _loops(getattr(module, name))
        assert loops is None or loop in loops


def test_all_features_of_the_page_are_listed():
    assert {row for _, row in cells("features", "features")} == FEATURES.keys()


def _loops(test):
    """Return the loops in which a test runs, if they are its parameters."""
    for mark in getattr(test, "pytestmark", []):
        names = mark.args[0] if mark.name == "parametrize" else ()
        if "loop" in (names if isinstance(names, tuple) else [names]):
            rows = mark.args[1]
            place = names.index("loop") if isinstance(names, tuple) else None
            return [row if place is None else row[place] for row in rows]
    return None
