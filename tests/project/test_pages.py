"""The generated parts of the pages are up to date, and the rows of the methods are complete."""

import json
import re
from collections import Counter

import pytest

from composable.comparison import Verdict
from tests.support.cases import METHODS, ROOT, all_function_cases
from tools.evidence import STUDIES, grade
from tools.exports import PACKAGES, exports
from tools.pages import EVIDENCE, REWRITE, methods, pages, recorded_answers
from tools.quality import REFERENCES, RESULTS

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


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_no_page_and_no_plot_shows_a_claim_that_the_rule_refuses(study):
    plot = (ROOT / "docs/evidence" / study.name / "plot.svg").read_text()
    paying = any(arm.verdict is Verdict.PAYS for arm in study.analysis.arms)
    assert bool(re.search(r" trains (at least )?\d| is worth (at least )?\d", plot)) <= paying
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *METHODS.glob("*.md")]
    for arm in study.refused:
        ratio = study.analysis[arm].speedup
        for shown in (f"pays, × {ratio.value:.2g}", f"{arm} trains ", f"{arm}: pays"):
            assert [page.name for page in pages if shown in page.read_text()] == []


def test_a_cell_of_what_was_measured_is_a_word_and_a_link():
    cells = [grade(case) for case in CASES]

    assert any(cell != "–" for cell in cells)
    assert all(
        re.fullmatch(r"–|\[(pays|costs|unclear|mixed)\]\(\w+\.md#evidence\)", c) for c in cells
    )


def test_the_first_pages_show_errors_of_the_demo_only_if_its_baseline_is_good():
    plain = next(row["error"] for row in json.loads(RESULTS.read_text()) if row["arm"] == "plain")
    good = plain <= min(json.loads(REFERENCES.read_text()).values())
    for page in (ROOT / "README.md", ROOT / "docs/index.md"):
        assert bool(re.search(r"errors of \d.* instead of", page.read_text())) <= good


def test_the_first_screen_leads_to_pages_that_begin_with_ten_lines_of_code():
    pages = re.findall(r":link: (\S+)", (ROOT / "docs/index.md").read_text())
    begin = re.compile(r"^```(?:\{code-cell\} )?(?:python|console)\n(.*?)^```", re.S | re.M)

    assert len(pages) == 9
    for page in pages:
        first = begin.search((ROOT / f"docs/{page}.md").read_text())
        assert first is not None, page
        assert len([line for line in first[1].splitlines() if line]) <= 10, page


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_pages_have_the_counts_of_the_negative_result(page):
    parts = next(one for one in STUDIES if one.name == "language-parts")
    arms = [arm for arm in parts.analysis.arms if arm.role == "arm"]
    added = [arm.verdict for arm in arms if not arm.arm.startswith("without ")]
    text = " ".join((ROOT / page).read_text().split())

    assert (len(added), added.count(Verdict.PAYS), added.count(Verdict.COSTS)) == (28, 0, 6)
    assert "Of 28 methods" in text
    assert "none pays and six cost" in text


def test_one_speedup_is_claimed():
    claimed = [
        (study.name, arm.arm)
        for study in STUDIES
        for arm in study.analysis.arms
        if arm.verdict is Verdict.PAYS
    ]

    assert claimed == [("language-long", "speedrun_gpt")]
