"""Cases of which `make test` runs some, and `make campaign` all."""

import os
import random
from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any, TypeVar

Case = TypeVar("Case")

FULL = os.environ.get("CAMPAIGN") == "1"
"""Whether to run every case: `make campaign`."""


def drawn(cases: Iterable[Case], count: int) -> list[Case]:
    """Draw cases at random, the same in every run; in a campaign, return all."""
    cases = list(cases)
    return cases if FULL else random.Random(0).sample(cases, min(count, len(cases)))


def second_once(pairs: Iterable[tuple[Any, Case]]) -> list[tuple[Any, Case]]:
    """Keep one pair with each second part, with the first parts in turn; in a campaign, all."""
    pairs = list(pairs)
    if FULL:
        return pairs
    found: dict[int, list[tuple[Any, Case]]] = {}
    for pair in pairs:
        found.setdefault(id(pair[1]), []).append(pair)
    return [same[i % len(same)] for i, same in enumerate(found.values())]


def each_once(*values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Combine values such that each is in a case; in a campaign, return all combinations."""
    if FULL:
        return list(product(*values))
    count = max(map(len, values))
    return [tuple(some[i % len(some)] for some in values) for i in range(count)]


def each_pair(*values: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Combine values such that each two are together in a case; in a campaign, return all."""
    cases = list(product(*values))
    left = {pair for case in cases for pair in combinations(enumerate(case), 2)}
    found = []
    while left and not FULL:
        found.append(max(cases, key=lambda case: len(left & {*combinations(enumerate(case), 2)})))
        left -= {*combinations(enumerate(found[-1]), 2)}
    return found or cases
