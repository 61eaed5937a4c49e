"""Decide which waiting trials one worker trains together: seeds of the same arm."""

from collections import deque
from collections.abc import Iterable
from typing import Literal, TypeAlias

from composable.comparison.records import Trial
from composable.comparison.trials.trial import Request

__all__ = ["Groups", "SeedsAtOnce", "check_seeds_at_once"]

SeedsAtOnce: TypeAlias = bool | Literal["auto"]

_LARGEST = 32
"""The most seeds in one process: each has its own model, data loader and optimizer there."""


def check_seeds_at_once(value: object) -> None:
    """Check an argument `seeds_at_once`.

    Raises:
        ValueError: It is neither True nor False nor "auto".
    """
    if not (isinstance(value, bool) or value == "auto"):
        raise ValueError(f"seeds_at_once={value!r} must be True, False or 'auto'.")


class Groups:
    """Waiting trials, in groups that differ in the seed only.

    Args:
        workers: The number of workers. A group has at most the share of one worker of all waiting
            trials, so that no worker is idle while another one has seeds left.
        seeds_at_once: Whether to make groups: "auto" stops it for an arm whose seeds could not be
            computed together, or not faster.
    """

    def __init__(self, workers: int, seeds_at_once: SeedsAtOnce) -> None:
        self._workers, self._seeds_at_once = workers, seeds_at_once
        self._waiting: deque[Request] = deque()
        self._separate: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, request: Request) -> None:
        """Add a trial."""
        self._waiting.append(request)

    def clear(self) -> None:
        """Drop all trials."""
        self._waiting.clear()

    def take(self) -> tuple[Request, ...]:
        """Remove the first trial, and those that are trained together with it, and return them."""
        share = min(_LARGEST, -(-len(self._waiting) // self._workers))
        first = self._waiting.popleft()
        if self._seeds_at_once is False or first.trial.arm in self._separate:
            return (first,)
        same = [one for one in self._waiting if _differ_in_seed(one.trial, first.trial)]
        group = [first, *same[: share - 1]]
        self._waiting = deque(one for one in self._waiting if not any(one is x for x in group))
        return tuple(group)

    def separate(self, arm: str) -> None:
        """Train the seeds of an arm one at a time from now on."""
        self._separate.add(arm)

    def put_back(self, group: Iterable[Request]) -> None:
        """Add trials at the front, to be trained one at a time."""
        requests = tuple(group)
        self._waiting.extendleft(reversed(requests))
        self._separate.update(one.trial.arm for one in requests)


def _differ_in_seed(one: Trial, other: Trial) -> bool:
    return _without_seed(one) == _without_seed(other) and one.seed != other.seed


def _without_seed(trial: Trial) -> tuple[object, ...]:
    return trial.arm, trial.duration, trial.purpose, repr(sorted(trial.settings.items()))
