"""The pairs of algorithms whose order in a chain matters: collected from the cases."""

from collections.abc import Iterator, Mapping

import attrs

from composable.plan.ordering import topological_sort
from tests.support.cases import (
    BOTH_FAIL,
    ONE_FAILS,
    OTHER_WEIGHTS,
    AlgorithmCase,
    all_cases,
)
from tests.support.runs import PROBLEMS


@attrs.frozen
class Pair:
    """Two algorithms for which `chain(a, b)` and `chain(b, a)` give different results.

    Args:
        first: The name of a class: the one that comes first in a list of both.
        second: The name of the other.
        on: The problems on which they differ: those on which both can act.
        how: One of the four ways of `tests/support/cases.py`.
        why: The reason, in a few words.
    """

    first: str
    second: str
    on: tuple[str, ...]
    how: str
    why: str


def pairs() -> list[Pair]:
    """Collect the pairs of all cases."""
    named = {case.algorithm.name: case.algorithm for case in all_cases() if case.algorithm}
    return [
        pair
        for algorithm in named.values()
        for others, why in algorithm.order_matters.items()
        for other in others.split()
        for pair in _pairs(
            algorithm, named[other], *([why, OTHER_WEIGHTS] if isinstance(why, str) else why)
        )
    ]


def _pairs(
    one: AlgorithmCase, other: AlgorithmCase, why: str, how: str | Mapping[str, str]
) -> Iterator[Pair]:
    """Yield a pair for each way in which the two orders differ, with the problems of that way."""
    first, second = (a.name for a in topological_sort([one.example, other.example]))
    on = [p.name for p in PROBLEMS if one.acts_on(p) and other.acts_on(p)]
    ways = dict.fromkeys(on, how) if isinstance(how, str) else how
    if wrong := ways.keys() ^ on:
        raise ValueError(
            f"order_matters of {one.name} and {other.name} must name the problems on which both "
            f"act, {on}; it differs by {sorted(wrong)}."
        )
    for way in dict.fromkeys(ways.values()):
        yield Pair(first, second, tuple(p for p in on if ways[p] == way), way, why)


PAIRS = pairs()


def can_be_combined(one: str, other: str) -> bool:
    """Return whether two algorithms can act in one run."""
    return not any({one, other} == {p.first, p.second} and p.how == BOTH_FAIL for p in PAIRS)


def works_in_order(one: str, other: str) -> bool:
    """Return whether a chain of two algorithms in this order can act."""
    return not any((other, one) == (p.first, p.second) and p.how == ONE_FAILS for p in PAIRS)
