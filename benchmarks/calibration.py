"""How often `compare` decides rightly: simulated studies whose speed-ups are known.

python benchmarks/calibration.py              # print the shares of 200 studies of each kind
python benchmarks/calibration.py --store      # and write docs/evidence/calibration.json
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.comparison.known_answers import ANSWERS, rates  # noqa: E402

STORED = ROOT / "docs/evidence/calibration.json"
STUDIES = 200
KINDS = (
    "the baseline",
    "the baseline with other seeds",
    "half the step cost",
    "twice as good a step",
    "2x better a step at 2x the cost",
    "1.3x better a step at 2x the cost",
    "2x, on schedules of its own",
    "an arm with five times the noise",
    "noise of seeds that all schedules share",
    "noise with heavy tails",
    "one of nine arms whose processes differ by 15 % instead of 2 %",
    "a baseline whose processes differ by 8 % instead of 2 %",
    "the baseline, beside an A/A arm",
    "half the step cost, beside an A/A arm",
)


def measured(kind: str, studies: int) -> dict[str, Any]:
    """Return the shares of studies of a kind with the right interval, and with each verdict."""
    found = rates(ANSWERS[kind], studies)
    row = {"kind": kind, "speedup": ANSWERS[kind].speedup, "studies": studies}
    row |= {"covered": found.covered, "pays": found.pays, "costs": found.costs}
    print(row, flush=True)
    return row


def main() -> None:
    """Print the shares."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--studies", type=int, default=STUDIES)
    parser.add_argument("--store", action="store_true", help=f"write {STORED.relative_to(ROOT)}")
    options = parser.parse_args()
    rows = [measured(kind, options.studies) for kind in KINDS]
    if options.store:
        STORED.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
