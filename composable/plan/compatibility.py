"""Which algorithms are compatible, and which need an explicit order."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import attrs

from composable.core.algorithm import Algorithm, leaves
from composable.core.window import Window
from composable.plan.ordering import declares_order, is_among


class IncompatibleAlgorithmsError(ValueError):
    """Two algorithms that must not act on the same batch are in one run."""


class CompatibilityWarning(UserWarning):
    """Two algorithms in one run may not have the effects that each has alone."""


class AmbiguousOrderWarning(CompatibilityWarning):
    """Two algorithms of one stage write the same field, so only their names order them."""


@attrs.frozen
class Occurrence:
    """An algorithm without parts, and its position inside combinations.

    Args:
        algorithm: The algorithm.
        ancestors: The combinations that contain it, from the outermost to the innermost.
        branches: For each of `ancestors`, the index of the part that leads to the algorithm.
    """

    algorithm: Algorithm
    ancestors: tuple[Algorithm, ...] = ()
    branches: tuple[int, ...] = ()

    def never_overlaps(self, other: "Occurrence") -> bool:
        """Return whether no step has both: at most one is drawn, or their windows are disjoint."""
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
        return any(a.is_apart(b) for a, b in pairs)

    def windows(self) -> list[Window]:
        """Return the windows of its ancestors; the algorithm may have a window too."""
        return [ancestor.window() for ancestor in self.ancestors]


def occurrences(
    algorithm: Algorithm, ancestors: tuple[Algorithm, ...] = (), branches: tuple[int, ...] = ()
) -> Iterator[Occurrence]:
    """Iterate over the innermost parts of an algorithm, with their positions."""
    if algorithm.events and not algorithm.parts:  # identity has neither
        yield Occurrence(algorithm, ancestors, branches)
    for i, part in enumerate(algorithm.parts):
        yield from occurrences(part, (*ancestors, algorithm), (*branches, i))


def check_names(algorithms: Sequence[Algorithm]) -> None:
    """Check that names are unique: they identify memory and random numbers.

    Raises:
        ValueError: Two algorithms have the same name.
    """
    seen: dict[str, tuple[Algorithm, int]] = {}
    for i, algorithm in enumerate(algorithms):
        for leaf in leaves(algorithm):
            other, position = seen.setdefault(leaf.name, (leaf, i))
            if position == i and other == leaf:  # one algorithm in two windows, say
                continue
            if other is leaf:
                raise ValueError(
                    f"algorithms contains {leaf!r} twice, the same instance: drop one of them, or "
                    "put both into one chain(...)."
                )
            raise ValueError(
                f"algorithms contains two named {leaf.name!r}: {other!r} and {leaf!r}. Names "
                "identify their memory and random numbers: rename one, such as "
                f"{type(leaf).__name__}(..., name='{leaf.name}2')."
            )


def check_compatibility(algorithms: Iterable[Algorithm]) -> None:
    """Check that no incompatible algorithms may act on the same batch.

    Raises:
        IncompatibleAlgorithmsError: Two may, and one of them declares that they must not.
    """
    everywhere = [found for algorithm in algorithms for found in occurrences(algorithm)]
    for occurrence, other in combinations(everywhere, 2):
        first, second = occurrence.algorithm, other.algorithm
        why = _declared_reason(first, second, "incompatible_with")
        if why and not occurrence.never_overlaps(other):
            raise IncompatibleAlgorithmsError(
                f"{first.name} and {second.name} are incompatible: {why}. Drop one of them, draw "
                f"one for each batch with choose([{first.name}, {second.name}]), or give them "
                "windows that don't overlap, in the same unit, with during(start, end, ...). "
                "(chain only fixes their order: both would still act.)"
            )


@attrs.frozen
class Caveat:
    """The reason why two algorithms in one run may not have the effects that each has alone."""

    first: str
    second: str
    why: str
    kind: type[CompatibilityWarning] = CompatibilityWarning
    update: str = ""
    """The update in which one of them acts, if there is one."""

    def __str__(self) -> str:
        pair = f"{self.first}, {self.second}"
        if self.update:
            return (
                f"{self.first} and {self.second} {self.why}. To fix their order, pass both to the "
                f"Update {self.update!r}, in one chain(...); otherwise drop one of them."
            )
        return (
            f"{self.first} and {self.second} {self.why}. Fix their order with chain({pair}), or "
            f"let only one of them act in each batch with choose([{pair}])."
        )


def caveats(algorithms: Sequence[Algorithm]) -> list[Caveat]:
    """Find the caveats of algorithms in their order; inside a chain there are none."""
    members = [(algorithm, list(occurrences(algorithm))) for algorithm in algorithms]
    found = (_caveat(*one, *other) for one, other in combinations(members, 2))
    return [caveat for caveat in found if caveat is not None]


def _caveat(
    one: Algorithm, ones: list[Occurrence], other: Algorithm, others: list[Occurrence]
) -> Caveat | None:
    shared: set[str] = set()
    update = max((each.update for a in (*ones, *others) for each in a.windows()), default="")
    for a, b in product(ones, others):
        why = _declared_reason(a.algorithm, b.algorithm, "discouraged_with")
        written = _written_by_both(a.algorithm, b.algorithm)
        if (why or written) and not a.never_overlaps(b):
            if why:
                return Caveat(one.name, other.name, f"may interfere: {why}", update=update)
            shared |= written
    if not shared or one.stage != other.stage or declares_order(one, other):
        return None
    why = (
        f"both write {sorted(shared)} in the stage {one.stage.name}, so only their names put "
        f"{one.name} first"
    )
    return Caveat(one.name, other.name, why, AmbiguousOrderWarning, update)


def _written_by_both(a: Algorithm, b: Algorithm) -> set[str]:
    """Find the fields of the state, or kinds of layers, that both write at one event."""
    if not set(a.events) & set(b.events):
        return set()
    shared = (set(a.writes) & set(b.writes)) - {"memory", "averages"}
    if "model" in shared and a.replaces and b.replaces:
        shared = shared - {"model"} | {f"model: {k}" for k in set(a.replaces) & set(b.replaces)}
    return shared


def _declared_reason(a: Algorithm, b: Algorithm, declaration: str) -> str | None:
    """Look up the reason in a declaration of one of two algorithms about the other."""
    for mine, other in ((a, b), (b, a)):
        reasons: Mapping[Any, str] = getattr(mine, declaration)
        for kind in reasons:
            if is_among(other, [kind]):
                return reasons[kind]
    return None
