"""The package stays within its budgets."""

import pytest

from tools.budgets import budgets, measure

ALLOWED = budgets()


@pytest.fixture(scope="module")
def found():
    return measure()


def test_every_number_has_a_budget(found):
    assert found.keys() == ALLOWED.keys(), "add it to tools/budgets.json, or remove it there"


@pytest.mark.parametrize("name", ALLOWED)
def test_a_number_is_within_its_budget(name, found):
    assert found[name] <= ALLOWED[name]["now"], (
        f"{name}: cut, or raise the number in tools/budgets.json with a reason in the commit"
    )
