"""The pairs of algorithms whose order in a chain matters, and why.

`docs/laws.md` shows the table; `python -m property_tests.pairs` writes it there anew.
"""

from pathlib import Path

import attrs

PAGE = Path(__file__).parents[1] / "docs/laws.md"
BEGIN, END = "<!-- pairs: written by property_tests/pairs.py -->\n", "<!-- end of pairs -->\n"

LAST_BITS = "in the last bits"
"""The two orders are equal to rounding."""
OTHER_WEIGHTS = "in the result"
"""The two orders train differently."""
ONE_FAILS = "in one order it fails"
"""One of the two orders raises an error; a list runs in the other."""
BOTH_FAIL = "together they fail"
"""Both orders raise an error: these two can't be combined."""


@attrs.frozen
class Pair:
    """Two algorithms for which `chain(a, b)` and `chain(b, a)` leave different things behind.

    Args:
        first: The name of a class: the one that comes first in a list of both.
        second: The name of the other.
        on: The problems on which they differ.
        how: One of the four above.
        why: The reason, in a few words.
    """

    first: str
    second: str
    on: tuple[str, ...]
    how: str
    why: str


PIXELS = "one changes the pixels that the other made"
SIZES = "one places what it draws by the size that the other made"
SCORES = "examples are chosen by the loss that they have before, or after, they are changed"
NO_LONGER_PLAIN = "pairs are made of plain convolutions, and the other one leaves none behind"
SHARES = "one takes a share of the length that the other made"
GATES = "the gate is made of a linear layer, and pairs are none"
LINEAR = "both are linear in the targets, and sums in another order round differently"

PAIRS = [
    Pair("AugMix", "CutOut", on=("vision",), how=OTHER_WEIGHTS, why=PIXELS),
    Pair("AugMix", "RandAugment", on=("vision",), how=OTHER_WEIGHTS, why=PIXELS),
    Pair("CutOut", "RandAugment", on=("vision",), how=OTHER_WEIGHTS, why=PIXELS),
    Pair("AugMix", "ColOut", on=("vision",), how=OTHER_WEIGHTS, why=SIZES),
    Pair("ColOut", "CutOut", on=("vision",), how=OTHER_WEIGHTS, why=SIZES),
    Pair("ColOut", "RandAugment", on=("vision",), how=OTHER_WEIGHTS, why=SIZES),
    Pair("ProgressiveResizing", "AugMix", on=("vision",), how=OTHER_WEIGHTS, why=SIZES),
    Pair("ProgressiveResizing", "ColOut", on=("vision",), how=OTHER_WEIGHTS, why=SIZES),
    Pair("ProgressiveResizing", "CutOut", on=("vision",), how=OTHER_WEIGHTS, why=SIZES),
    Pair("ProgressiveResizing", "RandAugment", on=("vision",), how=OTHER_WEIGHTS, why=SIZES),
    Pair("SelectiveBackprop", "Alibi", on=("language",), how=OTHER_WEIGHTS, why=SCORES),
    Pair("Alibi", "SeqLengthWarmup", on=("language",), how=OTHER_WEIGHTS, why=SHARES),
    Pair("SelectiveBackprop", "AugMix", on=("vision",), how=OTHER_WEIGHTS, why=SCORES),
    Pair("SelectiveBackprop", "ColOut", on=("vision",), how=OTHER_WEIGHTS, why=SCORES),
    Pair("SelectiveBackprop", "CutOut", on=("vision",), how=OTHER_WEIGHTS, why=SCORES),
    Pair("SelectiveBackprop", "ProgressiveResizing", on=("vision",), how=OTHER_WEIGHTS, why=SCORES),
    Pair("SelectiveBackprop", "RandAugment", on=("vision",), how=OTHER_WEIGHTS, why=SCORES),
    Pair("Factorize", "BlurPool", on=("vision",), how=OTHER_WEIGHTS, why=NO_LONGER_PLAIN),
    Pair("Factorize", "SqueezeExcite", on=("vision",), how=OTHER_WEIGHTS, why=NO_LONGER_PLAIN),
    Pair(
        "Factorize", "WeightStandardization", on=("vision",), how=OTHER_WEIGHTS, why=NO_LONGER_PLAIN
    ),
    Pair("GatedLinearUnits", "Factorize", on=("language",), how=ONE_FAILS, why=GATES),
    Pair("MixUp", "LabelSmoothing", on=("vision",), how=LAST_BITS, why=LINEAR),
    Pair("CutMix", "LabelSmoothing", on=("vision",), how=LAST_BITS, why=LINEAR),
    Pair(
        "CutMix",
        "MixUp",
        on=("vision",),
        how=BOTH_FAIL,
        why="both mix the batch, and a mixed batch can't be mixed again",
    ),
    Pair(
        "EMA",
        "SWA",
        on=("vision", "language"),
        how=BOTH_FAIL,
        why="both replace the model that is evaluated",
    ),
]


def can_be_combined(one: str, other: str) -> bool:
    """Whether two algorithms can act in one run."""
    return not any({one, other} == {p.first, p.second} and p.how == BOTH_FAIL for p in PAIRS)


def works_in_order(one: str, other: str) -> bool:
    """Whether a chain of two algorithms in this order can act."""
    return not any((other, one) == (p.first, p.second) and p.how == ONE_FAILS for p in PAIRS)


def table() -> str:
    """The pairs, as a table in Markdown."""
    rows = [
        f"| `{p.first}`, `{p.second}` | {' and '.join(p.on)} | {p.how} | {p.why} |" for p in PAIRS
    ]
    return "\n".join(["| pair | on | differs | why |", "|---|---|---|---|", *rows, ""])


def page_with(shown: str) -> str:
    """The page of laws, with this in the place of the table that it shows."""
    before, rest = PAGE.read_text().split(BEGIN)
    return f"{before}{BEGIN}\n{shown}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page_with(table()))
