"""The table of `make demo-digits` on the page about evidence, from its stored results."""

import json

from tests.support.cases import ROOT

__all__ = ["RESULTS", "quality_table"]

RESULTS = ROOT / "docs/evidence/digits-demo/results.json"


def quality_table() -> list[str]:
    """Return the errors of all runs of the demo, in percent."""
    rows = json.loads(RESULTS.read_text())
    lines = [
        "| arm | learning rate | epochs | seeds | test error | runs with 99 % accuracy |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            row["arm"],
            f"{row['lr']:g}",
            str(row["epochs"]),
            str(row["seeds"]),
            f"{row['error']:.2f} ± {row['interval']:.2f} %",
            f"{row['reached']} of {row['seeds']}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
