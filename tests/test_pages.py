"""The generated parts of the pages are up to date, and the rows of the methods are complete."""

import json
import re
from collections import Counter

import pytest

from tests.support.cases import METHODS, ROOT
from tests.support.function_cases import all_function_cases
from tools.exports import PACKAGES, exports
from tools.pages import EVIDENCE, REWRITE, methods, pages, recorded_answers
from tools.quality import RESULTS

PAGES = pages(recorded_answers())
CASES = methods()
PARTS = [
    *("Usage", "When to use it", "Cost", "Composability", "Hyperparameters", "References"),
    *("Evidence", "Properties"),
]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_is_up_to_date(path):
    assert path.read_text() == PAGES[path](), REWRITE


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_exports_what_its_modules_export(name):
    package = ROOT / "composable" / name

    assert (package / "__init__.py").read_text() == exports(package), REWRITE


def test_every_card_belongs_to_a_method():
    cards = {path.stem for path in METHODS.glob("*.md")} - {"index", "matrix"}

    assert cards == {case.name for case in CASES}


def test_rows_of_the_matrix_have_names_of_their_own():
    names = [row.name for _, row in all_function_cases()]

    assert [name for name, count in Counter(names).items() if count > 1] == []


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_a_row_and_its_card_are_complete_and_have_the_same_figures(case):
    row, text = case.overview, (METHODS / f"{case.name}.md").read_text()
    cost = text.partition("## Cost")[2].partition("\n## ")[0]

    assert all((row.summary, row.changes, row.cost, row.evidence, row.use_for))
    assert row.evidence.startswith(tuple(EVIDENCE))
    assert re.findall("^## (.*)$", text, re.M) == PARTS
    for figure in re.findall(r"\d[\d.]*", row.cost):
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d]|\.\d)", cost)


def test_the_errors_of_the_first_page_are_those_of_the_stored_demo():
    rows = {row["arm"]: row["error"] for row in json.loads(RESULTS.read_text())}
    page = (ROOT / "README.md").read_text()

    assert f"errors of {rows['all six']:.1f} % instead of {rows['plain']:.1f} %" in page
