"""Every cell of the tables is tested: a yes by its runs, a no by its error."""

import importlib

import pytest

from tests.integrations.table import cells, refused_in, works_in
from tests.integrations.test_laws_of_loops import (
    test_algorithms_train_and_evaluate_as_in_the_trainer as trains,
)
from tests.integrations.test_laws_of_loops import test_refused_algorithms_raise as refuses
from tests.support.integrations import FEATURES, LOOPS


def loops_of(test, name="loop"):
    """Return the loops, or other parameters, with which a test runs."""
    found = set()
    for mark in getattr(test, "pytestmark", []):
        names, rows = mark.args if mark.name == "parametrize" else ((), ())
        if name in ([names] if isinstance(names, str) else names):
            found |= {row if isinstance(names, str) else row[names.index(name)] for row in rows}
    return found


@pytest.mark.parametrize("loop", LOOPS)
def test_each_loop_is_tested_on_every_algorithm(loop):
    tried = {
        test: {row[1] for mark in test.pytestmark for row in mark.args[1] if row[0] == loop}
        for test in (trains, refuses)
    }

    assert set(refused_in(loop)) == tried[refuses]
    assert len(tried[trains] & set(works_in(loop))) >= 10


@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_is_tested_in_every_loop(feature):
    shown = {
        loop: cell for (loop, row), cell in cells("features", "features").items() if row == feature
    }

    assert list(shown) == list(LOOPS)
    assert {loop for loop, cell in shown.items() if cell.startswith("yes")} == FEATURES[
        feature
    ].keys()
    for loop, test in FEATURES[feature].items():
        file, name = test.split("::")
        module = importlib.import_module(f"tests.integrations.{file.removesuffix('.py')}")
        assert loop in loops_of(getattr(module, name))


def test_all_features_of_the_page_are_listed():
    assert {row for _, row in cells("features", "features")} == FEATURES.keys()
