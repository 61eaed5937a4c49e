"""The matrix of properties: what a run says of every public function.

`docs/methods/matrix.md` shows all of it, and each card its own rows;
`python -m property_tests.matrix` asks every question and writes them anew.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from composable.testing import FunctionReport
from composable.testing.properties import PROPERTIES
from property_tests.subjects import Subject, all_subjects

METHODS = Path(__file__).parents[1] / "docs/methods"
PAGE = METHODS / "matrix.md"
BEGIN, END = "<!-- matrix: written by property_tests/matrix.py -->\n", "<!-- end of matrix -->\n"

COLUMNS = {
    "pure": "pure",
    "generator": "generator",
    "global_generators": "global RNG",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float64": "float64",
    "channels_last": "channels last",
    "compile": "compile",
    "vmap": "vmap",
    "gradients": "gradients",
    "no_sync": "no sync",
    "batch_of_one": "batch of 1",
    "empty_batch": "batch of 0",
}
"""The properties, and how a column is headed."""

SHOWN = {"yes": "yes", "no": "no", "not applicable": "–"}

Answers = Mapping[str, tuple[str, ...]]
"""What is said of each property, as it is shown, by the name of a subject."""


def answers(report: FunctionReport) -> tuple[str, ...]:
    """What a run says, as it is shown."""
    return tuple(SHOWN[report.answers[asked].verdict] for asked in PROPERTIES)


def recorded() -> Answers:
    """What the page says."""
    rows = re.findall(r"^\| \[?(`[^|]*?)(?:\]\(\w+\.md\))? \| (.*) \|$", _shown(), re.M)
    return {name: tuple(c.split()[0] for c in cells.split(" | ")) for name, cells in rows}


def page(said: Answers) -> str:
    """The page of the matrix."""
    subjects = all_subjects()
    reasons = list(
        dict.fromkeys(reason for one in subjects for reason in one.expected_failures.values())
    )
    lines = [_head("function")]
    for one in subjects:
        name = f"[{one.name}]({one.card}.md)" if one.card else one.name
        cells = [
            f"no ({reasons.index(one.expected_failures[asked]) + 1})"
            if asked in one.expected_failures
            else cell
            for asked, cell in zip(PROPERTIES, said[one.name], strict=True)
        ]
        lines.append(_row(name, cells))
    lines += ["", "Why a no is a no:", ""]
    lines += [f"{number}. {_sentence(reason)}" for number, reason in enumerate(reasons, 1)]
    return _with(PAGE.read_text(), lines)


def cards() -> dict[Path, list[Subject]]:
    """The cards, with the subjects that each of them shows."""
    found: dict[Path, list[Subject]] = {}
    for one in all_subjects():
        if one.card:
            found.setdefault(METHODS / f"{one.card}.md", []).append(one)
    return found


def card(path: Path, subjects: Iterable[Subject], said: Answers) -> str:
    """A card with the rows of its functions."""
    rows = [_row(one.name, said[one.name]) for one in subjects]
    expected_failures: dict[tuple[str, str], list[str]] = {}
    for one in subjects:
        for reason in dict.fromkeys(one.expected_failures.values()):
            lacked = " and ".join(
                COLUMNS[asked] for asked, why in one.expected_failures.items() if why == reason
            )
            expected_failures.setdefault((lacked, reason), []).append(one.name)
    why = [
        f"- No {lacked}: {', '.join(names)}. {_sentence(reason)}"
        for (lacked, reason), names in expected_failures.items()
    ]
    return _with(path.read_text(), [_head(""), *rows, "", *why, *[""] * bool(why), MEANING])


MEANING = "[What these words mean](matrix.md), and the rows of all functions."


def _head(first: str) -> str:
    return _row(first, COLUMNS.values()) + "\n" + "|---" * (len(COLUMNS) + 1) + "|"


def _row(first: str, cells: Iterable[str]) -> str:
    return f"| {' | '.join([first, *cells])} |"


def _sentence(reason: str) -> str:
    return f"{reason[:1].upper()}{reason[1:]}."


def _shown() -> str:
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0]


def _with(text: str, lines: Iterable[str]) -> str:
    """A page with these lines between the marks, which follow the heading where there are none."""
    if BEGIN not in text:
        heading = "## Properties\n\n"
        text = f"{text.rstrip()}\n" if heading in text else f"{text.rstrip()}\n\n{heading}"
        before, after = text.split(heading)
        by_hand = re.match(r"(?:\|.*\n)*", after)  # the table of a card from before there was this
        text = f"{before}{heading}{BEGIN}{END}{after[by_hand.end() if by_hand else 0 :]}"
    before, rest = text.split(BEGIN)
    shown = "\n".join(lines)
    return f"{before}{BEGIN}\n{shown}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    """Ask every question, and write the pages."""
    said = {
        one.name: answers(one.report().require(except_=one.expected_failures))
        for one in all_subjects()
    }
    PAGE.write_text(page(said))
    for path, subjects in cards().items():
        path.write_text(card(path, subjects, said))


if __name__ == "__main__":
    main()
