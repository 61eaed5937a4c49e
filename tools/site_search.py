"""Ask the search of the built site the questions of users, and check which pages it finds.

    python -m tools.site_search docs/_build/html
    python -m tools.site_search docs/_build/html "one-cycle"    # show what a reader finds

`tools/questions.txt` holds the questions, and the page that answers each. The scripts of the site
run as in a browser; nothing of the search is repeated here. The exit status is 1 if a page is not
among the first three.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs
from py_mini_racer import MiniRacer

QUESTIONS = Path(__file__).parent / "questions.txt"
SEEN = 3  # results that a reader sees at once

BROWSER = """
    var window = globalThis;
    var document = {getElementById: () => null, documentElement: {dataset: {}}};
    var SPHINX_HIGHLIGHT_ENABLED = false, _ready = () => {}, _ = (text) => text;
"""
SCRIPTS = ("base-stemmer", "english-stemmer", "language_data", "searchtools", "search")
ASK = """
    (question) => JSON.stringify(
      Search._performSearch(...Search._parseQuery(question)).reverse().map((one) => one[0]))
"""


@attrs.frozen
class Question:
    """A question, and the pages of which each answers it."""

    words: str
    pages: tuple[str, ...]

    @classmethod
    def parse(cls, line: str) -> "Question":
        """Parse a line of the form `question => page, page`."""
        words, pages = line.split(" => ")
        return cls(words, tuple(pages.split(", ")))


class SiteSearch:
    """The search of a built site.

    Args:
        site: The folder of its pages.
    """

    def __init__(self, site: Path) -> None:
        static = [site / "_static" / f"{name}.js" for name in SCRIPTS]
        self._browser = MiniRacer()
        self._browser.eval(BROWSER)
        static = [one for one in static if one.exists()]  # Sphinx 8 has no files of stemmers
        for script in (*static, site / "searchindex.js"):
            self._browser.eval(script.read_text())

    def pages(self, question: str) -> list[str]:
        """Return the pages that it finds, the best first."""
        found = json.loads(self._browser.eval(f"({ASK})({json.dumps(question)})"))
        return list(dict.fromkeys(found))

    def faults(self, questions: Sequence[Question]) -> list[str]:
        """Describe the questions whose page is not among the first results."""
        return [
            f"{asked.words!r} finds {found}, and not {' or '.join(asked.pages)}"
            for asked in questions
            if not set(found := self.pages(asked.words)[:SEEN]) & set(asked.pages)
        ]


def read_questions() -> list[Question]:
    """Read the questions."""
    lines = QUESTIONS.read_text().splitlines()
    return [Question.parse(line) for line in lines if line and not line.startswith("#")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask all questions, or show what one finds, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("question", nargs="?")
    options = parser.parse_args(arguments)
    search = SiteSearch(options.site)
    if options.question is not None:
        print("\n".join(search.pages(options.question)[:10]))
        return 0
    faults = search.faults(read_questions())
    print("\n".join(faults), end="\n" * bool(faults))
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
