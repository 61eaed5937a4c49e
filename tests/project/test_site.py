"""The site: what cannot be shown stops its build, and its search answers questions."""

import shutil
import subprocess
import sys

import pytest

from tests.support.cases import ROOT
from tests.support.commands import run_python
from tools.site_search import Question, SiteSearch, read_questions

DOCS = ROOT / "docs"
PAGES = {
    "index": "# Home\n\n```{toctree}\n:glob:\n\n*\n```\n",
    "rates": "# Rates\n\nIt is $\\frac{1}{n}$.\n\n```{index} ! lr finder\n```\n\n## Find one\n",
    "weights": "# Weights\n\nAverages, and the dots $x_1, \\dots, x_n$.\n",
}


def build(folder, pages):
    """Build a site with the configuration of the documentation."""
    source = folder / "docs"
    for name in ("_extensions", "_static"):
        shutil.copytree(DOCS / name, source / name)
    shutil.copy(DOCS / "conf.py", source)
    for name, text in pages.items():
        (source / f"{name}.md").write_text(text)
    command = ["sphinx", "-q", "-W", "--keep-going", source, folder / "site"]
    return subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = build(folder, PAGES)
    assert built.returncode == 0, built.stderr
    return folder / "site"


def test_formulas_are_in_the_page_and_nothing_is_fetched(site):
    page = (site / "rates.html").read_text()

    assert "<mfrac>" in page
    assert "…" in (site / "weights.html").read_text()
    assert "\\frac" not in page
    assert 'src="http' not in page


def test_a_dead_link_and_a_formula_that_does_not_render_stop_the_build_and_name_the_page(tmp_path):
    bad = {"formula": "# Formula\n\n$\\nonsense{x}$\n", "link": "# Link\n\n[there](nowhere.md)\n"}

    built = build(tmp_path, {"index": PAGES["index"], **bad})

    assert built.returncode == 1
    assert "formula.md" in built.stderr
    assert "the formula '\\\\nonsense{x}' does not render: Unknown LaTeX command" in built.stderr
    assert "link.md:3: WARNING" in built.stderr
    assert "nowhere.md" in built.stderr


def test_an_example_that_fails_stops_the_tests_and_names_the_page(tmp_path):
    (tmp_path / "sum.md").write_text("# Sum\n\n```python\n>>> 1 + 1\n3\n\n```\n")
    command = (
        "-c",
        ROOT / "pyproject.toml",
        "--rootdir",
        tmp_path,
        "--noconftest",
        "-p",
        "no:cacheprovider",
    )

    output, _ = run_python("-m", "pytest", "-q", *command, "sum.md", status=1, cwd=tmp_path)

    assert "sum.md" in output


@pytest.mark.parametrize(
    ("question", "page"),
    [
        ("How do I find a rate?", "rates"),
        ("lr finder", "rates"),
        ("averaged weights of a model", "weights"),  # "model" is on no page
        ("aver", "weights"),  # the start of a word, as it is typed
    ],
)
def test_the_search_finds_a_page_by_the_words_of_a_question(site, question, page):
    assert SiteSearch(site).pages(question)[0] == page


def test_a_question_whose_page_is_not_found_is_named(site):
    asked = [Question.parse("lr finder => weights, index"), Question.parse("lr finder => rates")]

    assert SiteSearch(site).faults(asked) == [
        "'lr finder' finds ['rates'], and not weights or index"
    ]


def test_every_question_of_the_list_has_a_page_that_exists():
    pages = {page for question in read_questions() for page in question.pages}

    assert len(read_questions()) >= 30
    assert [page for page in sorted(pages) if not (DOCS / f"{page}.md").is_file()] == []
