"""Every cell of the table is tested: a yes by its runs, a no by its error."""

import re
from pathlib import Path

import pytest

from tests.integrations.table import table
from tests.support.integrations import LOOPS


@pytest.mark.parametrize("loop", LOOPS)
def test_every_yes_has_its_test_and_every_no_its_refusal(loop):
    source = (Path(__file__).parent / LOOPS[loop]).read_text()
    cells = [cell for (where, _), cell in table().items() if where == loop]

    tested = re.findall(rf'"name", works_in\("{loop}"\)\)\ndef test_\w+\(name', source)
    refused = re.findall(rf'"name", refused_in\("{loop}"\)\)\ndef test_\w+\(name', source)

    assert len(tested) == 1
    assert len(refused) == (1 if any(cell != "yes" for cell in cells) else 0)
