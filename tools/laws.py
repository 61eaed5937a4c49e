"""The tables of the page of laws and of the folder of laws, from the docstrings of the tests.

A paragraph `Law of time: fractions are exact.` in the docstring of a test is a row of the table
`laws of time`, with the file of the test. A law that several tests check has one row.
"""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("property_tests", "tests/integrations")
PAGE = ROOT / "docs/laws.md"
PARAGRAPH = re.compile(r"^Law of (\w+): (.*)$", re.S)


@cache
def laws() -> dict[str, dict[str, list[str]]]:
    """Return the files of the tests of each law, by topic and law."""
    found: dict[str, dict[str, list[str]]] = {}
    for path in sorted(one for folder in FOLDERS for one in (ROOT / folder).glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
                    if match := PARAGRAPH.match(paragraph):
                        rows = found.setdefault(match[1], {})
                        law = " ".join(match[2].split())
                        rows.setdefault(law, []).append(str(path.relative_to(ROOT)))
    return found


def law_table(topic: str) -> list[str]:
    """Render the laws of a topic, with the files of their tests."""
    rows = (
        f"| {law} | {', '.join(f'`{file}`' for file in dict.fromkeys(files))} |"
        for law, files in laws()[topic].items()
    )
    return ["| law | tests |", "|---|---|", *rows]


def file_table() -> list[str]:
    """Render what each file of the folder is about, in the order of the page of laws."""
    sections = re.split(r"^## (.*)$", PAGE.read_text(encoding="utf-8"), flags=re.M)
    topics: dict[str, str] = {}
    for title, text in zip(sections[1::2], sections[2::2], strict=True):
        for name in re.findall(r"property_tests/(\w+)\.py", text):
            topics.setdefault(name, title)
    paths = {path.stem: path for path in sorted((ROOT / FOLDERS[0]).glob("test_*.py"))}
    rows = []
    for name in dict.fromkeys([*topics, *paths]):
        doc = ast.get_docstring(ast.parse(paths[name].read_text(encoding="utf-8"))) or ""
        law = re.sub(r"^(The )?[Ll]aws?: ", "", doc.partition("\n\n")[0].replace("\n", " "))
        title = topics.get(name, "")
        topic = f"[{title}](../docs/laws.md#{title.lower().replace(' ', '-')})" if title else ""
        rows.append(f"| {law[0].upper()}{law[1:]} | [`{name}.py`]({name}.py) | {topic} |")
    return ["| law | file | section of the page |", "|---|---|---|", *rows]
