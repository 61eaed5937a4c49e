"""The package stays within its budgets."""

import json

import pytest

from tools.budgets import BUDGETS, measure

FOUND, ALLOWED = measure(), json.loads(BUDGETS.read_text())


def test_every_number_has_a_budget():
    assert FOUND.keys() == ALLOWED.keys(), "add it to tools/budgets.json, or remove it there"


@pytest.mark.parametrize("name", FOUND)
def test_a_number_is_within_its_budget(name):
    assert FOUND[name] <= ALLOWED[name], (
        f"{name}: cut, or raise the number in tools/budgets.json with a reason in the commit"
    )
