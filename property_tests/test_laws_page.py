"""Law: the page of laws names tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMED = re.findall(r"`(property_tests/\w+\.py)::(\w+)`", (ROOT / "docs/laws.md").read_text())


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_test_that_the_page_names_exists(path, name):
    assert f"\ndef {name}(" in (ROOT / path).read_text()
