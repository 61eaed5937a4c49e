"""Every cell of the table is tested: a yes by its runs, a no by its error."""

from pathlib import Path

import pytest

from tests.support.integrations import LOOPS


@pytest.mark.parametrize("loop", LOOPS)
def test_each_loop_is_tested_on_every_algorithm(loop):
    source = (Path(__file__).parent / LOOPS[loop]).read_text()

    assert f'"{loop}"' in source
    assert "works_in(" in source
    assert "refused_in(" in source
