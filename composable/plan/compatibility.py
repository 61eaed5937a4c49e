"""Which algorithms go together, and which don't, or only in an order that somebody must say."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import attrs

from composable.core.algorithm import Algorithm, leaves
from composable.core.window import Window
from composable.plan.ordering import declares_order, is_among

__all__ = [
    "AmbiguousOrderWarning",
    "Caveat",
    "CompatibilityWarning",
    "IncompatibleAlgorithmsError",
    "Occurrence",
    "caveats",
    "check_compatibility",
    "check_names",
    "occurrences",
]


class IncompatibleAlgorithmsError(ValueError):
    """Two algorithms that must not act on one batch are in one run."""


class CompatibilityWarning(UserWarning):
    """Two algorithms in one run may not do together what each of them does alone."""


class AmbiguousOrderWarning(CompatibilityWarning):
    """Two algorithms write the same field in the same stage, so only their names order them."""


@attrs.frozen
class Occurrence:
    """An algorithm without parts, and where it stands: what is ancestors it, from the outside in.

    `branches` says which part of each of `ancestors` leads to the algorithm.
    """

    algorithm: Algorithm
    ancestors: tuple[Algorithm, ...] = ()
    branches: tuple[int, ...] = ()

    def never_overlaps(self, other: "Occurrence") -> bool:
        """Whether no batch has both: one of the two is drawn, or their windows don't meet."""
        for mine, theirs, my_branch, their_branch in zip(
            self.ancestors, other.ancestors, self.branches, other.branches, strict=False
        ):
            if mine is not theirs:
                break
            if my_branch != their_branch:
                if mine.exclusive:
                    return True
                break
        pairs = [(a, b) for a in self.windows() for b in other.windows()]
        return any(a.before(b) or b.before(a) for a, b in pairs)

    def windows(self) -> list[Window]:
        """The windows ancestors the algorithm; it may have one of its own besides."""
        return [one.window() for one in self.ancestors]


def occurrences(
    algorithm: Algorithm, ancestors: tuple[Algorithm, ...] = (), branches: tuple[int, ...] = ()
) -> Iterator[Occurrence]:
    """Where the algorithms stand that an algorithm is made of in the end."""
    if algorithm.events and not algorithm.parts:  # identity has neither
        yield Occurrence(algorithm, ancestors, branches)
    for i, part in enumerate(algorithm.parts):
        yield from occurrences(part, (*ancestors, algorithm), (*branches, i))


def check_names(algorithms: Sequence[Algorithm]) -> None:
    """Names tell memory and random numbers apart, so no two algorithms have one."""
    seen: dict[str, tuple[Algorithm, int]] = {}
    for i, algorithm in enumerate(algorithms):
        for leaf in leaves(algorithm):
            other, where = seen.setdefault(leaf.name, (leaf, i))
            if where == i and other == leaf:  # one algorithm in two windows, say
                continue
            if other is leaf:
                raise ValueError(
                    f"algorithms has {leaf!r} twice, the same instance: drop one of them, or put "
                    "both into one chain(...)."
                )
            raise ValueError(
                f"algorithms has two named {leaf.name!r}: {other!r} and {leaf!r}. Names tell their "
                "memory and random numbers apart: give one another, such as "
                f"{type(leaf).__name__}(..., name='{leaf.name}2')."
            )


def check_compatibility(algorithms: Iterable[Algorithm]) -> None:
    """No two that may act on one batch conflict.

    Raises:
        IncompatibleAlgorithmsError: Two do, as one of them declares.
    """
    everywhere = [place for algorithm in algorithms for place in occurrences(algorithm)]
    for one, other in combinations(everywhere, 2):
        first, second = one.algorithm, other.algorithm
        why = _declared(first, second, "incompatible_with")
        if why and not one.never_overlaps(other):
            raise IncompatibleAlgorithmsError(
                f"{first.name} and {second.name} don't go together: {why}. Leave one of them out, "
                f"have one drawn for each batch with choose([{first.name}, {second.name}]), or "
                "give them windows that don't meet, in one unit, with during(start, end, ...). "
                "(chain only says which of two comes first: both would still act.)"
            )


@attrs.frozen
class Caveat:
    """Why two algorithms in one run may not do what each does alone."""

    first: str
    second: str
    why: str
    kind: type[CompatibilityWarning] = CompatibilityWarning

    def __str__(self) -> str:
        pair = f"{self.first}, {self.second}"
        return (
            f"{self.first} and {self.second} {self.why}. Say which comes first, with "
            f"chain({pair}), or that one of them acts in each batch, with choose([{pair}])."
        )


def caveats(algorithms: Sequence[Algorithm]) -> list[Caveat]:
    """What is doubtful about a set of algorithms in their order; a chain settles a caveat."""
    stands = [(algorithm, list(occurrences(algorithm))) for algorithm in algorithms]
    found = (_caveat(*one, *other) for one, other in combinations(stands, 2))
    return [caveat for caveat in found if caveat is not None]


def _caveat(
    one: Algorithm, ones: list[Occurrence], other: Algorithm, others: list[Occurrence]
) -> Caveat | None:
    shared: set[str] = set()
    for a, b in product(ones, others):
        why = _declared(a.algorithm, b.algorithm, "discouraged_with")
        written = _written_by_both(a.algorithm, b.algorithm)
        if (why or written) and not a.never_overlaps(b):
            if why:
                return Caveat(one.name, other.name, f"may not go together: {why}")
            shared |= written
    if not shared or one.stage != other.stage or declares_order(one, other):
        return None
    why = (
        f"both write {sorted(shared)} in the stage {one.stage.name}, so only their names put "
        f"{one.name} first"
    )
    return Caveat(one.name, other.name, why, AmbiguousOrderWarning)


def _written_by_both(a: Algorithm, b: Algorithm) -> set[str]:
    """What both write at one event: fields of the state, or kinds of layers of the model."""
    if not set(a.events) & set(b.events):
        return set()
    shared = (set(a.writes) & set(b.writes)) - {"memory"}
    if "model" in shared and a.replaces and b.replaces:
        shared = shared - {"model"} | {f"model: {k}" for k in set(a.replaces) & set(b.replaces)}
    return shared


def _declared(a: Algorithm, b: Algorithm, name: str) -> str | None:
    """What one of two declares about the other, in its `incompatible_with` or `discouraged_with`."""
    for mine, other in ((a, b), (b, a)):
        said: Mapping[Any, str] = getattr(mine, name)
        for kind in said:
            if is_among(other, [kind]):
                return said[kind]
    return None
