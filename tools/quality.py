"""The table of `make demo-digits` on the page about evidence, from its stored results."""

import json

from tests.support.cases import ROOT

__all__ = ["RESULTS", "quality_lines"]

RESULTS = ROOT / "docs/evidence/digits-demo/results.json"
REFERENCES = RESULTS.with_name("references.json")


def quality_lines() -> list[str]:
    """Return the errors of all runs of the demo, in percent, below what simpler models reach."""
    rows = json.loads(RESULTS.read_text())
    references = json.loads(REFERENCES.read_text())
    plain = next(row["error"] for row in rows if row["arm"] == "plain")
    named = " and ".join(f"a {name} has {error:.2f} %" for name, error in references.items())
    said = f"On the same split {named} (`python benchmarks/digits_references.py`). "
    if plain > min(references.values()):
        said += (
            f"**The plain run, with {plain:.2f} %, is worse than these,** so no gain of the six "
            "methods over a good baseline is claimed."
        )
    lines = [
        said,
        "",
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
