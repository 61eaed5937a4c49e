"""Law: the overview of the methods has a row for each, in order, with the figures of the cards."""

import re

import pytest

from property_tests.matrix import METHODS, cards
from property_tests.specimens import SPECIMENS

PAGE = (METHODS / "index.md").read_text()
CARDS = sorted(path.stem for path in METHODS.glob("*.md") if path.stem not in ("index", "matrix"))
EVIDENCE = ["wide", "paper", "disputed", "practice"]
"""From the best on."""

TABLES = [
    [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| [")]
    for table in PAGE.split("\n### ")[1:]
]
ROWS = {re.sub(r"\[`(\w+)`\].*", r"\1", row[0]): row for table in TABLES for row in table}


def strength(row):
    """The place of a row's evidence, 0 for the best."""
    return EVIDENCE.index(re.match(r"\w+", row[4]).group())


def cost_on_the_card(name):
    """What the card says of the cost."""
    return (METHODS / f"{name}.md").read_text().partition("## Cost")[2].partition("\n## ")[0]


def test_every_card_has_one_row_that_leads_to_it_and_a_place_in_the_contents():
    assert sorted(ROWS) == CARDS
    assert sum(map(len, TABLES)) == len(ROWS)
    assert all(row[0] == f"[`{name}`]({name}.md)" for name, row in ROWS.items())
    contents = PAGE.partition("```{toctree}")[2].split("\n\n")[1].split()
    assert sorted(contents) == sorted([*CARDS, "matrix", "```"])


def test_every_algorithm_has_one_row():
    assert sorted(row[1] for row in ROWS.values()) == sorted(f"`{s.name}`" for s in SPECIMENS)


def test_every_function_has_a_card():
    assert {path.stem for path in cards()} <= set(CARDS)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_says_what_changes_what_it_costs_how_good_the_evidence_is_and_when_to_use_it(name):
    row = ROWS[name]

    assert len(row) == 6
    assert all(cell.strip() for cell in row)
    assert row[4].startswith(tuple(EVIDENCE))


@pytest.mark.parametrize("name", ROWS)
def test_the_figures_of_a_row_are_those_of_the_card(name):
    for figure in re.findall(r"\d[\d.]*", ROWS[name][3]):
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d]|\.\d)", cost_on_the_card(name))


@pytest.mark.parametrize("name", ROWS)
def test_a_card_has_all_parts(name):
    text = (METHODS / f"{name}.md").read_text()

    for part in ("Use", "When to use it", "Cost", "What it goes with", "Where it comes from"):
        assert f"\n## {part}\n" in text


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table[0][1])
def test_the_better_evidence_comes_first(table):
    assert [strength(row) for row in table] == sorted(map(strength, table))
