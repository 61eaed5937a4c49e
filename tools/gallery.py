"""The pictures of the gallery: from the methods' cards, and the plots of the studies."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.support.cases import ROOT
from tools import evidence

PICTURE = re.compile(r"^!\[([^]]+)\]\(([^)]+)\)", re.M)
TITLE = re.compile(r"^# (.+)$", re.M)


def lines(cards: Iterable[Path]) -> list[str]:
    """Render the pictures with the titles of their pages."""
    return [
        "## What methods do",
        "",
        *_methods(cards),
        "## What comparisons found",
        "",
        *_studies(),
    ][:-1]


def _methods(cards: Iterable[Path]) -> Iterator[str]:
    for card in cards:
        text = card.read_text()
        title = TITLE.search(text)
        for alt, picture in PICTURE.findall(text)[:1]:
            page = card.relative_to(ROOT / "docs").as_posix()
            yield from (f"### [{title[1] if title else card.stem}]({page})", "")
            path = (card.parent / picture).resolve().relative_to(ROOT / "docs")
            yield from (f"![{alt}]({path.as_posix()})", "")


def _studies() -> Iterator[str]:
    for study in evidence.STUDIES:
        anchor = re.sub(r"[^\w-]", "", study.title.lower().replace(" ", "-"))
        yield from (f"### [{study.title}](evidence.md#{anchor})", "")
        alt = evidence.caption(study)
        yield from (f"![{alt}](evidence/{study.name}/plot.svg)", "")
