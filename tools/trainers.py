"""The answers of trainers that `python -m benchmarks.trainers --save` records."""

import json
from collections.abc import Iterable
from typing import Any

from benchmarks.trainers.questions import NOTHING, QUESTIONS
from tests.support.cases import ROOT

RECORD = ROOT / "docs/evidence/trainers.json"
NAMES = {
    "composable": "composable",
    "composer": "Composer",
    "lightning": "Lightning",
    "huggingface": "Hugging Face",
    "accelerate": "Accelerate",
}
DETAILED = {**NAMES, "composer_link": "Composer, by its link"}


def recorded(names: Iterable[str] = NAMES) -> dict[str, Any]:
    """Return what is recorded of each trainer, by its name."""
    found: dict[str, Any] = json.loads(RECORD.read_text())["trainers"]
    return {name: found[name] for name in names}


def answer_table() -> list[str]:
    """Render yes or no for each question and trainer."""
    found, link = recorded(), recorded(DETAILED)["composer_link"]["answers"]
    rows = [f"| | {' | '.join(NAMES.values())} |", "|---|" + "---|" * len(found)]
    for question in QUESTIONS:
        answers = [_answer(*one["answers"][question]) for one in found.values()]
        if link[question][0] and not found["composer"]["answers"][question][0]:
            answers[[*found].index("composer")] = "by its link"
        rows.append(f"| {question} | {' | '.join(answers)} |")
    return rows


def _answer(does: bool, seen: str) -> str:
    return "yes" if does else "–" if seen == NOTHING else "no"


def detail_table() -> list[str]:
    """Render what was seen of each trainer."""
    rows = ["| trainer | version | question | | seen |", "|---|---|---|---|---|"]
    for name, one in recorded(DETAILED).items():
        for question, (does, seen) in one["answers"].items():
            cells = DETAILED[name], one["version"], question, _answer(does, seen), seen
            rows.append(f"| {' | '.join(cells)} |")
    return rows
