"""The generated parts of the pages are up to date, and the rows of the methods are complete."""

import re

import pytest

from tests.support.cases import METHODS, ROOT
from tools.exports import PACKAGES, exports
from tools.pages import EVIDENCE, REWRITE, methods, pages, recorded_answers

PAGES = pages(recorded_answers())
CASES = methods()
PARTS = [
    "Usage",
    "When to use it",
    "Cost",
    "Composability",
    "Hyperparameters",
    "References",
    "Properties",
]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_is_up_to_date(path):
    assert path.read_text() == PAGES[path], REWRITE


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_exports_what_its_modules_export(name):
    package = ROOT / "composable" / name

    assert (package / "__init__.py").read_text() == exports(package), REWRITE


def test_every_card_belongs_to_a_method():
    cards = {path.stem for path in METHODS.glob("*.md")} - {"index", "matrix"}

    assert cards == {case.name for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_a_row_has_every_cell_and_names_its_evidence(case):
    overview = case.overview

    assert all(
        (overview.summary, overview.changes, overview.cost, overview.evidence, overview.use_for)
    )
    assert overview.evidence.startswith(tuple(EVIDENCE))


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_the_figures_of_a_row_are_those_of_the_card(case):
    card = (METHODS / f"{case.name}.md").read_text().partition("## Cost")[2].partition("\n## ")[0]

    for figure in re.findall(r"\d[\d.]*", case.overview.cost):
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d]|\.\d)", card)


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_a_card_has_all_parts_in_order(case):
    text = (METHODS / f"{case.name}.md").read_text()

    assert re.findall("^## (.*)$", text, re.M) == PARTS
