"""The order of a set of algorithms: by stage, then by what they declare, then by name."""

from collections.abc import Iterable, Sequence

from composable.core.algorithm import Algorithm, leaves
from composable.core.event import Event

__all__ = ["declares_order", "explain_position", "is_among", "topological_sort"]


def topological_sort(algorithms: Iterable[Algorithm]) -> list[Algorithm]:
    """By stage, then by what they declare to come before or after, then by name.

    Raises:
        ValueError: What they declare goes in a circle, or contradicts their stages.
    """
    waiting = sorted(algorithms, key=lambda algorithm: (algorithm.stage, algorithm.name))
    order: list[Algorithm] = []
    while waiting:
        free = (a for a in waiting if not any(_precedes(b, a) for b in waiting if b is not a))
        first = next(free, None)
        if first is None:
            _refuse_circle(waiting)
        order.append(first)  # type: ignore[arg-type]
        waiting.remove(first)  # type: ignore[arg-type]
    for i, later in enumerate(order):
        for earlier in order[:i]:
            if declares_order(later, earlier):
                raise ValueError(
                    f"{later.name} must come before {earlier.name}, as one of them declares, and "
                    f"its stage {later.stage.name} comes after {earlier.stage.name}. Change a "
                    f"stage, or say the order with chain({later.name}, {earlier.name})."
                )
    return order


def _precedes(first: Algorithm, second: Algorithm) -> bool:
    if first.stage != second.stage:
        return first.stage < second.stage
    return declares_order(first, second)


def _refuse_circle(waiting: Sequence[Algorithm]) -> None:
    """Go back from one to what must come before it, until one comes again."""
    path = [waiting[0]]
    while path[-1] not in path[:-1]:
        path.append(next(a for a in waiting if a is not path[-1] and _precedes(a, path[-1])))
    circle = path[path.index(path[-1]) :][::-1]
    raise ValueError(
        f"algorithms {sorted(a.name for a in circle[1:])} can't be ordered: what they declare in "
        f"before and after goes in a circle: {' before '.join(a.name for a in circle)}. Drop one "
        "of the declarations."
    )


def declares_order(first: Algorithm, second: Algorithm) -> bool:
    """Whether one of two algorithms declares that the first comes before the second."""
    return any(
        is_among(b, a.before) or is_among(a, b.after) for a in leaves(first) for b in leaves(second)
    )


def is_among(algorithm: Algorithm, classes: Iterable[type | str]) -> bool:
    """Whether an algorithm is of one of these classes, or of a class with one of these names."""
    return any(
        kind.__name__ == one if isinstance(one, str) else kind is one
        for kind in type(algorithm).__mro__
        for one in classes
    )


def explain_position(
    event: Event, here: Sequence[Algorithm], i: int, plan: Sequence[Algorithm]
) -> str:
    """Why an algorithm stands in its place among those at an event.

    Args:
        event: The event.
        here: Those that listen to it, in the order in which they run.
        i: Whose place it is about.
        plan: All algorithms in order, for who isn't here may be why.
    """
    me = here[i]
    if len(here) == 1:
        return "alone here"
    if event.closes and event.partner in me.events:
        return f"closes {_value(event.partner)}, in reverse"
    if i == 0:
        following = here[1]
        if event.closes and event.partner in following.events:
            return f"before those that close {_value(event.partner)}"
        if me.stage < following.stage:
            return "first of the stages here"
        awaited = _awaited(me, following, plan)
        if awaited is me:
            return f"before {following.name}, as declared"
        if awaited is not None:
            return f"{following.name} comes after {awaited.name}, as declared"
        return f"same stage as {following.name}, ordered by name"
    previous = here[i - 1]
    if previous.stage < me.stage:
        return f"{me.stage.name.lower()} comes after {previous.stage.name.lower()}"
    awaited = _awaited(previous, me, plan)
    if awaited is not None:
        return f"after {awaited.name}, as declared"
    return f"same stage as {previous.name}, ordered by name"


def _awaited(first: Algorithm, second: Algorithm, plan: Sequence[Algorithm]) -> Algorithm | None:
    """What kept the second from standing before the first: the first, or one between the two."""
    candidates = plan[plan.index(first) : plan.index(second)]
    return next((other for other in candidates if declares_order(other, second)), None)


def _value(event: Event | None) -> str:
    return "" if event is None else event.value
