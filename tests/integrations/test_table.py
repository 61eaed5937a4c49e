"""The page says what works where, and every yes is a test."""

import re
from pathlib import Path

import pytest

import composable.algorithms
from tests.integrations.table import ALL, PAGE, table

LOOPS = {
    "own loop": "test_own_loop.py",
    "Fabric": "test_fabric.py",
    "Accelerate": "test_accelerate.py",
    "Lightning, callback": "test_lightning.py",
    "Lightning, mixin": "test_lightning.py",
    "HF, callback": "test_huggingface.py",
    "HF, mixin": "test_huggingface.py",
}


def test_the_table_has_every_algorithm_and_every_loop():
    rows = [*composable.algorithms.__all__, ALL]

    assert set(table()) == {(loop, name) for loop in LOOPS for name in rows}


def test_every_cell_is_a_yes_or_a_no_with_its_reason():
    reasons = re.findall(r"^(\d)\. ", PAGE.read_text(), flags=re.MULTILINE)

    assert set(table().values()) <= {"yes", *[f"no ({number})" for number in reasons]}


@pytest.mark.parametrize("loop", LOOPS)
def test_every_yes_has_its_test_and_every_no_its_refusal(loop):
    source = (Path(__file__).parent / LOOPS[loop]).read_text()
    cells = [cell for (where, _), cell in table().items() if where == loop]

    tested = re.findall(rf'"name", works_in\("{loop}"\)\)\ndef test_\w+\(name', source)
    refused = re.findall(rf'"name", refused_in\("{loop}"\)\)\ndef test_\w+\(name', source)

    assert len(tested) == 1
    assert len(refused) == (1 if any(cell != "yes" for cell in cells) else 0)
