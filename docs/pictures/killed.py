"""Draw the losses of runs that were killed five times: python docs/pictures/killed.py.

From docs/evidence/trainers.json, which `python -m benchmarks.trainers --save` writes.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks.trainers.questions import KILLS
from tools.trainers import NAMES, recorded

PICTURE = Path(__file__).with_suffix(".svg")
WIDTH, HEIGHT, GAP, TOP, LEFT = 190, 120, 14, 34, 14
GREY, BLUE, RED = "#999", "#2166ac", "#c0392b"


def panel(number: int, name: str, record: dict[str, Any]) -> Iterator[str]:
    """Draw the losses of one trainer: whole in grey, killed in color."""
    whole, killed = record["whole"], record["killed"]
    left = LEFT + number * (WIDTH + GAP)
    steps = max(len(whole), len(killed)) - 1
    low, high = min(whole + killed), max(whole + killed)

    def points(losses: Iterable[float]) -> list[tuple[float, float]]:
        return [
            (left + WIDTH * i / steps, TOP + HEIGHT * (high - loss) / (high - low))
            for i, loss in enumerate(losses)
        ]

    color = BLUE if whole == killed else RED
    yield f'<text x="{left}" y="{TOP - 14}" font-weight="bold">{NAMES[name]}</text>'
    for kill in accumulate(KILLS):
        x = left + WIDTH * (kill - 0.5) / steps
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{TOP + HEIGHT}" stroke="#ddd"/>'
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points(whole))
    yield f'<polyline points="{line}" fill="none" stroke="{GREY}" stroke-width="2"/>'
    for x, y in points(killed):
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>'


def draw() -> str:
    """Return the picture."""
    found = recorded()
    width = 2 * LEFT + len(found) * (WIDTH + GAP) - GAP
    bottom = TOP + HEIGHT + 26
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + 10}" '
        f'viewBox="0 0 {width} {bottom + 10}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{bottom + 10}" fill="white"/>',
    ]
    for number, (name, record) in enumerate(found.items()):
        lines.extend(panel(number, name, record))
    said = "Loss of each step: a whole run (line), and one that is killed five times (points)."
    lines += [f'<text x="{LEFT}" y="{bottom}" fill="#555">{said}</text>', "</svg>"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(draw())
