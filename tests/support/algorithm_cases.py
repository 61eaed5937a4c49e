"""Every algorithm of the library, its pairs, and strategies over them: see `tests/cases`."""

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import attrs
from hypothesis import strategies as st

from composable import (
    Algorithm,
    State,
    Time,
    always,
    anneal,
    chain,
    choose,
    during,
    every,
    identity,
    never,
    when,
)
from composable.plan.ordering import topological_sort
from tests.support.algorithms import Draws, GradientNoise, Jitter, WordNoise
from tests.support.cases import BOTH_FAIL, ONE_FAILS, OTHER_WEIGHTS, AlgorithmCase, all_cases
from tests.support.runs import LANGUAGE, PROBLEMS, VISION, Problem

ALGORITHMS = [case.algorithm for case in all_cases() if case.algorithm]
"""Every algorithm of the library."""

EXTRAS = [
    AlgorithmCase(Jitter, cannot={LANGUAGE: "token ids can't be scaled"}),
    AlgorithmCase(WordNoise, cannot={VISION: "pixels are not words"}),
    AlgorithmCase(GradientNoise),
    AlgorithmCase(Draws),
]
"""Algorithms of the tests, which do what no algorithm of the library does."""


def cases_on(problem: Problem, *, extras: bool = True) -> list[AlgorithmCase]:
    """Those that can act on a problem."""
    return [one for one in ALGORITHMS + EXTRAS * extras if one.acts_on(problem)]


def combinable(problem: Problem, *, extras: bool = True) -> list[AlgorithmCase]:
    """Those that can act on a problem together with others."""
    return [one for one in cases_on(problem, extras=extras) if not one.alone]


def instances_of(kind: type[Algorithm]) -> st.SearchStrategy[Any]:
    """Return a strategy for instances of one class."""
    return next(one.instances for one in ALGORITHMS + EXTRAS if one.kind is kind)


def algorithms(problem: Problem = VISION) -> st.SearchStrategy[Algorithm]:
    """Any one algorithm that can act on a problem."""
    return st.sampled_from(cases_on(problem)).flatmap(lambda one: one.instances)


# --- pairs whose order in a chain matters ---


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


# --- sets ---


@st.composite
def algorithm_sets(
    draw: Any,
    problem: Problem = VISION,
    *,
    min_size: int = 0,
    max_size: int | None = None,
    but: Callable[[AlgorithmCase], Any] = lambda case: False,
) -> list[Algorithm]:
    """Draw algorithms that can act on a problem together, in any order.

    Args:
        draw: Given by Hypothesis.
        problem: What they act on.
        min_size: How many there are at least, where all can be combined.
        max_size: How many there are at most.
        but: Whether a case is excluded.
    """
    pool = [one for one in combinable(problem) if not but(one)]
    chosen: list[AlgorithmCase] = []
    some = st.lists(st.sampled_from(pool), unique_by=id, min_size=min_size, max_size=max_size)
    for one in draw(some):
        if all(can_be_combined(one.name, other.name) for other in chosen):
            chosen.append(one)
    return [draw(one.instances) for one in chosen]


def everything(problem: Problem) -> list[Algorithm]:
    """Return the algorithms that can act on a problem together."""
    chosen: list[AlgorithmCase] = []
    for one in combinable(problem):
        if all(can_be_combined(one.name, other.name) for other in chosen):
            chosen.append(one)
    return [one.example for one in chosen]


# --- under combinators ---


def early(state: State) -> bool:
    """Return whether the run is in its first batches, at any event of a step."""
    return state.timestamp.batch < 3


def annealed(algorithm: Algorithm) -> Algorithm:
    """Replace the hyperparameters of an algorithm by constant functions of time."""
    given = {f.name: getattr(algorithm, f.name) for f in attrs.fields(type(algorithm))}
    name = given.pop("name")
    return anneal(
        type(algorithm), name=name, **{key: _constant(value) for key, value in given.items()}
    )


def _constant(value: Any) -> Callable[[Any], Any]:
    return lambda clock: value


@st.composite
def wrapped(draw: Any, algorithm: Algorithm) -> Algorithm:
    """Draw a combinator, and apply it to an algorithm."""
    kinds = ["when", "during", "every", "choose", "chain", "split"]
    kind = draw(st.sampled_from(kinds + ["anneal"] * (not algorithm.parts)))
    if kind == "when":
        return when(draw(st.sampled_from([always, early, never])), algorithm)
    if kind == "every":
        return every(draw(st.sampled_from(["2ba", "1ba", "3ba", "1ep", "2ep"])), algorithm)
    if kind == "choose":
        return choose([algorithm, identity], weights=[draw(st.integers(1, 3)), 1])
    if kind == "anneal":
        return annealed(algorithm)
    if kind == "chain":
        return chain(*draw(st.permutations([identity, algorithm])))
    unit, whole = draw(st.sampled_from([("ba", 1), ("dur", 6)]))
    points = sorted(draw(st.lists(st.integers(0, 6), min_size=3, max_size=3)))
    start, middle, end = (Time(Fraction(point, whole), unit) for point in points)
    if kind == "during":
        return during(start, end, algorithm)
    return chain(during(start, middle, algorithm), during(middle, end, algorithm))


@st.composite
def combinations(draw: Any, problem: Problem = VISION, *, min_size: int = 0) -> list[Algorithm]:
    """Draw a list of algorithms, some of them under combinators, nested at random."""
    listed = []
    for algorithm in draw(algorithm_sets(problem, min_size=min_size)):
        for _ in range(draw(st.integers(0, 2))):
            algorithm = draw(wrapped(algorithm))
        listed.append(algorithm)
    return listed


problems = st.sampled_from(PROBLEMS)


def on_a_problem(strategy: Callable[[Problem], Any]) -> st.SearchStrategy[tuple[Problem, Any]]:
    """Draw a problem, and a value of its strategy."""
    return problems.flatmap(lambda problem: st.tuples(st.just(problem), strategy(problem)))
