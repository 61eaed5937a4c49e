"""Cases of which `make test` runs some, and `make campaign` all."""

import os
import random
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, TypeVar

Case = TypeVar("Case")

FULL = os.environ.get("CAMPAIGN") == "1"
"""Whether to run every case: `make campaign`."""


def drawn(cases: Iterable[Case], count: int) -> list[Case]:
    """Draw cases at random, the same in every run; in a campaign, return all."""
    cases = list(cases)
    return cases if FULL else random.Random(0).sample(cases, min(count, len(cases)))


def each_once(*values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Combine values such that each is in a case; in a campaign, return all combinations."""
    if FULL:
        return list(product(*values))
    count = max(map(len, values))
    return [tuple(some[i % len(some)] for some in values) for i in range(count)]
