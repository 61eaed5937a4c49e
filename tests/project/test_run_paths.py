"""A batch, a save and a resume pass no more files of the package than docs/design.md says."""

import re

import pytest

from tests.support.cases import ROOT
from tools.run_paths import files_of, traces

ROW = re.compile(r"^\| ([^|]+) \| [\d,]+ \| (\d+) \| [\d,]+ \|$", re.MULTILINE)
DOCUMENTED = dict(ROW.findall((ROOT / "docs/design.md").read_text()))


@pytest.fixture(scope="module")
def measured():
    return {what: len(set(files_of(codes))) for what, codes in traces().items()}


def test_the_table_has_everything_that_is_measured(measured):
    assert DOCUMENTED.keys() == measured.keys()


@pytest.mark.parametrize("what", DOCUMENTED)
def test_the_files_that_are_passed(measured, what):
    assert measured[what] <= int(DOCUMENTED[what])
