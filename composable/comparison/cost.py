"""The cost of a step of each arm, measured in turn on this machine.

Each arm trains in a separate process, one process at a time: a run is cut into blocks, and in each
round every arm trains its next block, in a random order. A change in the speed of the machine
affects all arms alike, and the state of an algorithm, such as averages or frozen layers, is part of
its cost. Processes of one arm differ, by the layout of their memory, so that all of this is
repeated with new ones.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from statistics import fmean

import attrs

from composable.comparison.building import BuildError
from composable.comparison.records import StepCost, Trial
from composable.comparison.trial import Compared, Stopwatch, run_trial, yield_reports

_BLOCKS, _POINTS = 15, 5
"""The blocks of a run, and the points of the run to which they belong."""


# --- the measurement ---


@attrs.frozen
class TimedBlock:
    """Some steps of a run."""

    begin: int
    end: int
    seconds: float
    """Of one step."""


def paused_run(subject: Compared, trial: Trial, steps: int) -> Iterator[TimedBlock | None]:
    """Train a run of so many steps block by block; what is yielded first is None: it is set up.

    The first step of a block is not measured: the caches hold the data of another arm. A loop that
    yields less often has blocks from yield to yield.
    """
    count = max(1, min(_BLOCKS, steps // 3))
    ends = [steps * i // count for i in range(1, count + 1)]
    begin, resumed, since = 0, 0, 0.0

    def train(report: Callable[[TimedBlock | None], None]) -> None:
        def pause(step: int, watch: Stopwatch) -> None:
            nonlocal begin, resumed, since
            block = None  # set-up, compilation and the first step
            if resumed and ends and step >= ends[0]:
                block = TimedBlock(begin, step, (watch.read("training") - since) / (step - begin))
                ends[:] = [end for end in ends if end > step]
            elif resumed:
                if step == resumed + 1:
                    begin, since = step, watch.read("training")
                return
            part = watch.part
            watch.switch("waiting")
            report(block)
            watch.switch(part)
            begin, resumed, since = step, step, watch.read("training")

        if error := run_trial(subject, trial, pause).error:
            raise RuntimeError(error)

    return yield_reports(train)


def interleave(
    runs: Sequence[Callable[[], TimedBlock | None]],
) -> tuple[list[list[TimedBlock]], dict[int, str]]:
    """Call runs, which train a block each, in turn and in random order, until all have ended.

    Returns:
        The blocks of each run, and the errors of those that failed, by index.
    """
    order, alive = random.Random(0), list(range(len(runs)))
    blocks: list[list[TimedBlock]] = [[] for _ in runs]
    errors: dict[int, str] = {}
    while alive:
        order.shuffle(alive)
        for index in alive[:]:
            try:
                block = runs[index]()
            except BuildError:
                raise
            except Exception as error:  # also of a process that has died
                errors[index], block = str(error), None
            if block is None:
                alive.remove(index)
            else:
                blocks[index].append(block)
    return blocks, errors


def step_cost(trial: Trial, blocks: Sequence[TimedBlock], steps: int) -> StepCost | None:
    """Return the cost of an arm: some points of its run, with a round for each block of a point."""
    if not blocks:
        return None
    points = min(_POINTS, len(blocks))
    rounds = len(blocks) // points
    kept = blocks[len(blocks) - points * rounds :]
    parts = [kept[at : at + rounds] for at in range(0, len(kept), rounds)]
    return StepCost(
        trial.arm,
        trial.duration,
        tuple(min(1.0, fmean((b.begin + b.end) / 2 for b in part) / steps) for part in parts),
        tuple(tuple(block.seconds for block in part) for part in parts),
    )


def rescale_cost(cost: StepCost, measured: StepCost, reference: StepCost) -> StepCost:
    """Scale costs by the baseline's in the same measurement and in a reference."""
    now, then = fmean(measured.step_seconds), fmean(reference.step_seconds)
    factor = then / now if now else 1.0
    return attrs.evolve(
        cost, seconds=tuple(tuple(value * factor for value in rounds) for rounds in cost.seconds)
    )


def join_costs(costs: Sequence[StepCost]) -> StepCost:
    """Return the cost of an arm from several processes' costs, with the rounds that all have."""
    rounds = min(len(row) for cost in costs for row in cost.seconds)
    rows = zip(*(cost.seconds for cost in costs), strict=False)
    seconds = tuple(tuple(chain.from_iterable(one[-rounds:] for one in row)) for row in rows)
    progress = costs[0].progress[: len(seconds)]
    return attrs.evolve(costs[0], progress=progress, seconds=seconds, processes=len(costs))
