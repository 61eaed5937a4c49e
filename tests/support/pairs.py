"""The pairs of algorithms whose order in a chain matters: collected from the cases."""

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
        _pair(algorithm, named[other], *([why, OTHER_WEIGHTS] if isinstance(why, str) else why))
        for algorithm in named.values()
        for others, why in algorithm.order_matters.items()
        for other in others.split()
    ]


def _pair(one: AlgorithmCase, other: AlgorithmCase, why: str, how: str) -> Pair:
    first, second = (a.name for a in topological_sort([one.example, other.example]))
    on = tuple(p.name for p in PROBLEMS if one.acts_on(p) and other.acts_on(p))
    return Pair(first, second, on, how, why)


PAIRS = pairs()


def can_be_combined(one: str, other: str) -> bool:
    """Return whether two algorithms can act in one run."""
    return not any({one, other} == {p.first, p.second} and p.how == BOTH_FAIL for p in PAIRS)


def works_in_order(one: str, other: str) -> bool:
    """Return whether a chain of two algorithms in this order can act."""
    return not any((other, one) == (p.first, p.second) and p.how == ONE_FAILS for p in PAIRS)
