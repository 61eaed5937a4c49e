"""The order of algorithms: by stage, then by their declarations, then by name."""

from collections.abc import Iterable, Sequence
from itertools import combinations

from composable.core.algorithm import Algorithm, leaves
from composable.core.event import Event


def topological_sort(algorithms: Iterable[Algorithm]) -> list[Algorithm]:
    """Order algorithms by stage, then by `before` and `after`, then by name.

    Raises:
        ValueError: The declarations are cyclic, or contradict the stages.
    """
    waiting = sorted(algorithms, key=lambda algorithm: (algorithm.stage, algorithm.name))
    order: list[Algorithm] = []
    while waiting:
        free = (a for a in waiting if not any(_precedes(b, a) for b in waiting if b is not a))
        first = next(free, None)
        if first is None:
            raise ValueError(_cycle_message(waiting))
        order.append(first)
        waiting.remove(first)
    _check_stages(order)
    return order


def _precedes(first: Algorithm, second: Algorithm) -> bool:
    if first.stage != second.stage:
        return first.stage < second.stage
    return declares_order(first, second)


def _cycle_message(waiting: Sequence[Algorithm]) -> str:
    # Each one waits for another one: following these backwards meets an algorithm twice.
    path = [waiting[0]]
    while path[-1] not in path[:-1]:
        path.append(next(a for a in waiting if a is not path[-1] and _precedes(a, path[-1])))
    cycle = path[path.index(path[-1]) :][::-1]
    return (
        f"algorithms {sorted(a.name for a in cycle[1:])} cannot be ordered: their declarations "
        f"before and after are cyclic: {' before '.join(a.name for a in cycle)}. Drop one of the "
        "declarations."
    )


def _check_stages(order: Sequence[Algorithm]) -> None:
    for earlier, later in combinations(order, 2):
        if declares_order(later, earlier):
            raise ValueError(
                f"{later.name} must come before {earlier.name}, as one of them declares, but "
                f"its stage {later.stage.name} comes after {earlier.stage.name}. Change a "
                f"stage, or fix the order with chain({later.name}, {earlier.name})."
            )


def declares_order(first: Algorithm, second: Algorithm) -> bool:
    """Return whether one of two algorithms declares that the first comes before the second."""
    return any(
        is_among(b, a.before) or is_among(a, b.after) for a in leaves(first) for b in leaves(second)
    )


def is_among(algorithm: Algorithm, classes: Iterable[type | str]) -> bool:
    """Return whether an algorithm is an instance of one of these classes, or names of classes."""
    return any(
        kind.__name__ == one if isinstance(one, str) else kind is one
        for kind in type(algorithm).__mro__
        for one in classes
    )


# --- explanations ---


def explain_position(
    event: Event, here: Sequence[Algorithm], i: int, plan: Sequence[Algorithm]
) -> str:
    """Explain the position of an algorithm among the algorithms of an event.

    Args:
        event: The event.
        here: The algorithms that listen to it, in the order in which they run.
        i: The position of the algorithm.
        plan: All algorithms in order: one that doesn't listen here may be the reason.
    """
    algorithm = here[i]
    if len(here) == 1:
        return "alone here"
    if event.closes and event.partner in algorithm.events:
        return f"closes {_value(event.partner)}, in reverse"
    at = max(i, 1)  # the first one is explained by the one after it
    before, after = here[at - 1], here[at]
    if i == 0 and event.closes and event.partner in after.events:
        return f"before those that close {_value(event.partner)}"
    if before.stage < after.stage:
        stages = f"{after.stage.name.lower()} comes after {before.stage.name.lower()}"
        return stages if i else "first of the stages here"
    awaited = _awaited(before, after, plan)
    if awaited is None:
        return f"same stage as {(before if i else after).name}, ordered by name"
    if i:
        return f"after {awaited.name}, as declared"
    if awaited is before:
        return f"before {after.name}, as declared"
    return f"{after.name} comes after {awaited.name}, as declared"


def _awaited(first: Algorithm, second: Algorithm, plan: Sequence[Algorithm]) -> Algorithm | None:
    """Find the algorithm, from the first on, after which the second must come."""
    candidates = plan[plan.index(first) : plan.index(second)]
    return next((other for other in candidates if declares_order(other, second)), None)


def _value(event: Event | None) -> str:
    return "" if event is None else event.value
