"""Measure the cost of an inactive algorithm at an event.

An event fires with 0, 10, 100 and 1000 algorithms in the plan, in turns, so that the drift of the
machine cancels. The slope of the CPU time over the number is the cost of one algorithm.

    python benchmarks/plan.py

The figures in docs/performance.md come from this script.
"""

import statistics
import time
import warnings
from collections.abc import Callable

import attrs
import torch

from composable import Algorithm, Event, Plan, State, Timestamp, chain, during, every, never, when
from composable.algorithms import EMA, SelectiveBackprop
from composable.core.algorithm import FunctionAlgorithm
from composable.core.logger import Logger
from composable.plan.dispatch import Dispatcher

COUNTS = (0, 10, 100, 1000)
ROUNDS, ALGORITHMS_A_TURN = 60, 2000


@attrs.frozen(repr=False)
class Elsewhere(Algorithm):
    """An algorithm that listens to another event."""

    events = frozenset({Event.FIT_END})

    def apply(self, event: Event, state: State) -> State:
        return state


@attrs.frozen(repr=False)
class Declines(Algorithm):
    """An algorithm that listens and never acts."""

    events = frozenset({Event.BATCH_START})

    def match(self, event: Event, state: State) -> bool:
        return False

    def apply(self, event: Event, state: State) -> State:
        raise AssertionError


def nothing(event: Event, state: State) -> State:
    return state


CASES: dict[str, tuple[Event, Callable[[str], object]]] = {
    "listens to another event": (Event.BATCH_START, lambda name: Elsewhere(name=name)),
    "match is False": (Event.BATCH_START, lambda name: Declines(name=name)),
    "apply returns the state": (
        Event.BATCH_START,
        lambda name: FunctionAlgorithm(nothing, name=name),
    ),
    "when(never, a)": (Event.BATCH_START, lambda name: when(never, Declines(name=name))),
    "chain(a)": (Event.BATCH_START, lambda name: chain(Declines(name=name))),
    "every, not its turn": (Event.BATCH_START, lambda name: every("2ba", Declines(name=name))),
    "during, in batches": (
        Event.BATCH_START,
        lambda name: during("0ba", "5ba", Declines(name=name)),
    ),
    "during, not yet": (
        Event.BATCH_START,
        lambda name: during("0.95dur", "1dur", Declines(name=name)),
    ),
    "during, no longer": (
        Event.BATCH_START,
        lambda name: during("0dur", "0.5dur", Declines(name=name)),
    ),
    "SelectiveBackprop, outside": (
        Event.AFTER_DATALOADER,
        lambda name: SelectiveBackprop(name=name),
    ),
    "EMA, not yet started": (
        Event.BATCH_END,
        lambda name: EMA("1ba", ema_start="0.99dur", name=name),
    ),
    "EMA, between updates": (
        Event.BATCH_END,
        lambda name: EMA("8ba", update_interval="8ba", name=name),
    ),
}


def measure(event: Event, make: Callable[[str], object]) -> dict[int, float]:
    """Measure the microseconds to fire an event, by the number of algorithms."""
    now = Timestamp(epoch=9, batch=901, batch_in_epoch=1)
    state = State(torch.nn.Linear(1, 1), max_duration="10ep", epoch_length=100, timestamp=now)
    state = state.evolve(previous_timestamp=now)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the order of a thousand equal algorithms is ambiguous
        fires = {
            n: Dispatcher(Plan.compile([make(f"{i:04}") for i in range(n)]), Logger()).fire
            for n in COUNTS
        }
    taken: dict[int, list[float]] = {n: [] for n in COUNTS}
    for _ in range(ROUNDS):
        for n, fire in fires.items():
            times = max(2, ALGORITHMS_A_TURN // max(n, 10))
            started = time.thread_time()
            for _ in range(times):
                fire(event, state)
            taken[n].append(1e6 * (time.thread_time() - started) / times)
    return {n: statistics.median(times) for n, times in taken.items()}


def slope(taken: dict[int, float]) -> float:
    """Fit the microseconds of one more algorithm: least squares through the means."""
    mean_n, mean_t = statistics.mean(taken), statistics.mean(taken.values())
    above = sum((n - mean_n) * (t - mean_t) for n, t in taken.items())
    return above / sum((n - mean_n) ** 2 for n in taken)


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'an inactive algorithm':32}  µs each   µs per event with {COUNTS}")
    for name, (event, make) in CASES.items():
        taken = measure(event, make)
        each = "  ".join(f"{t:8.2f}" for t in taken.values())
        print(f"{name:32}  {slope(taken):7.3f}   {each}", flush=True)


if __name__ == "__main__":
    main()
