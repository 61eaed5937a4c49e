"""Tabulate what each surgery changed in the models that `make vision` trains."""

import json
from collections.abc import Iterator
from pathlib import Path

__all__ = ["architecture_table"]

RECORD = Path(__file__).parents[1] / "docs/evidence/architectures.json"


def architecture_table() -> Iterator[str]:
    """Yield a table of the surgeries by the architectures, and those that changed nothing."""
    record = json.loads(RECORD.read_text())
    of: dict[str, dict[str, dict[str, int] | None]] = record["architectures"]
    surgeries = sorted({name for found in of.values() for name in found})
    idle = [one for one in surgeries if all(found[one] is None for found in of.values())]
    yield from (f"| | {' | '.join(of)} |", f"|---|{'---:|' * len(of)}")
    for one in surgeries:
        if one not in idle:
            yield f"| `{one}` | {' | '.join(_cell(found[one]) for found in of.values())} |"
    versions = ", ".join(f"{name} {number}" for name, number in record["packages"].items())
    names = ", ".join(f"`{one}`" for one in idle)
    yield from ("", f"Nothing to change in any of them: {names}. Versions: {versions}.")


def _cell(changed: dict[str, int] | None) -> str:
    """Return the number of layers that were changed."""
    return "–" if changed is None else str(sum(changed.values()) or "all")
