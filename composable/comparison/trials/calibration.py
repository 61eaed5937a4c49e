"""Measure the cost of a step of each arm, interleaved with the steps of the others.

Each arm trains in a process of its own. At some points of the run, all of them wait, and then one
process at a time trains a few steps, in a random order, for several rounds: a change in the speed
of the machine affects all arms alike. Between the points, the processes train at the same time. So
nothing is saved or loaded, and the state of an algorithm at a point of the run, such as averages or
frozen layers, is part of its cost.
"""

import queue
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from composable.comparison.records import StepCost
from composable.comparison.trials.blocks import Blocks, CalibrationError
from composable.comparison.trials.building import BuildError
from composable.comparison.trials.cores import cuda_devices
from composable.comparison.trials.costs import rescale
from composable.comparison.trials.pacing import Arrived, Length, Measured, PacedTask
from composable.comparison.trials.payload import pickled
from composable.comparison.trials.pool import Pool
from composable.comparison.trials.process import Ended, Reply, WorkerProcess
from composable.comparison.trials.trial import Request
from composable.comparison.trials.worker import READY
from composable.core._warnings import warn_user
from composable.functional._checks import check_count

__all__ = ["CalibrationWarning", "calibrate"]

_POLL = 0.2
_AT_ONCE = 4
"""The number of processes that are alive at once if the memory of one is not known."""


class CalibrationWarning(UserWarning):
    """The cost of a step of an arm cannot be measured."""


def calibrate(
    pool: Pool,
    requests: Sequence[Request],
    *,
    batches: Sequence[int] | None = None,
    points: int = 5,
    rounds: int = 9,
    steps: int = 8,
    at_once: int | None = None,
    on_part: Callable[[float], None] | None = None,
) -> list[StepCost]:
    """Measure the cost of a step of each arm, on an otherwise idle machine.

    The workers of the pool are ended first. Evaluations are not counted. If not all arms can be
    alive at once, they are measured in groups that each contain the baseline, and the costs of a
    group are scaled so that its baseline costs as much as that of the first group.

    Args:
        pool: The pool whose folder, threads and options the processes have.
        requests: A trial of each arm, the baseline first: the chosen settings, the duration.
        batches: The number of batches of each run. Default: as its first step shows, which takes
            a loader with a length, or a duration in batches.
        points: The number of points of the run, in the middle of equal parts.
        rounds: The number of rounds at each point. Short runs have fewer.
        steps: The number of measured steps of a turn; short runs have fewer. One more step
            before them is not measured, since the caches hold the data of another arm.
        at_once: The number of processes that are alive at the same time, at least 2. Default: as
            many as fit in the free memory, if the pool has run trials, and otherwise 4.
        on_part: Called with the fraction of the work that is finished, each time that it grows.

    Returns:
        The cost of each arm, in the order of the requests. An arm that fails has none, with a
        warning.

    Raises:
        CalibrationError: The baseline fails, or its run is too short.
        BuildError: `build` cannot be compared.
    """
    for name, value in (("points", points), ("rounds", rounds), ("steps", steps)):
        check_count(name, value, 1)
    if at_once is None:
        at_once = _fitting(pool.peak_memory)
    check_count("at_once", at_once, 2)
    if not requests:
        return []
    pool.stop()
    blocks = Blocks(tuple((i + 0.5) / points for i in range(points)), rounds, steps)
    order = random.Random(0)
    lengths: Sequence[int | None] = [None] * len(requests) if batches is None else batches
    first, *others = (
        PacedTask(request, pool.split_evaluation, length)
        for request, length in zip(requests, lengths, strict=True)
    )
    groups = [others[i : i + at_once - 1] for i in range(0, len(others), at_once - 1)] or [[]]
    baseline: StepCost | None = None
    costs: list[StepCost] = []
    for number, group in enumerate(groups):
        with _alive(pool, [first, *group]) as alive:
            done = partial(_report, on_part, number, len(groups))
            measured = _Calibration(alive, blocks, order, done).run()
        again = measured.pop(0)
        assert again is not None
        if baseline is None:
            baseline = again
            costs.append(baseline)
        costs += [rescale(one, again, baseline) for one in measured if one is not None]
    return costs


def _report(
    on_part: Callable[[float], None] | None, finished: int, groups: int, part: float
) -> None:
    """Report the part of all groups that is finished, from that of one."""
    if on_part is not None:
        on_part((finished + part) / groups)


def _fitting(peak: int) -> int:
    """Return how many processes fit in the free memory, given that of one."""
    free = _free_memory()
    return max(2, free // peak) if peak and free and not cuda_devices() else _AT_ONCE


def _free_memory() -> int:
    """Return the bytes of memory that are available, or 0 if unknown."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(one for one in lines if one.startswith("MemAvailable"))
        return int(available.split()[1]) * 1024
    return 0


@attrs.define(eq=False)
class _Member:
    """An arm that is measured, and its process."""

    request: Request
    worker: WorkerProcess
    seconds: list[list[float]] = attrs.field(factory=list)
    error: str | None = None


@contextmanager
def _alive(pool: Pool, tasks: Sequence[PacedTask]) -> Iterator["_Group"]:
    """Start a process for each arm, and end all of them afterwards."""
    replies: queue.SimpleQueue[Reply | Ended] = queue.SimpleQueue()
    members: list[_Member] = []
    try:
        for number, task in enumerate(tasks):
            worker = pool.start(number, replies, device=0)
            members.append(_Member(task.request, worker))
            name = f"the arguments of arm {task.request.trial.arm!r}"
            worker.send(pickled(name, task, pool.build))
        yield _Group(members, replies)
    finally:
        for one in members:
            one.worker.kill()


@attrs.define(eq=False)
class _Group:
    """The arms whose processes are alive, the baseline first."""

    members: list[_Member]
    replies: "queue.SimpleQueue[Reply | Ended]"

    @property
    def running(self) -> list[_Member]:
        """The members that have not failed."""
        return [one for one in self.members if one.error is None]

    def expect(self, members: Sequence[_Member], kind: type) -> dict[int, Any]:
        """Wait for a message of each member, and return them by index; a failed one has none.

        Raises:
            CalibrationError: The baseline failed.
        """
        waiting, found = {id(one) for one in members if one.error is None}, {}
        while waiting:
            message = self._next()
            member = next(one for one in self.members if one.worker is message.worker)
            if isinstance(message, Reply) and message.message == READY:
                continue
            if isinstance(message, Reply) and isinstance(message.message, kind):
                found[self.members.index(member)] = message.message
            else:
                self._fail(member, message)
            waiting.discard(id(member))
        return found

    def _next(self) -> Reply | Ended:
        while True:  # in pieces, so that an interrupt is handled in between
            try:
                return self.replies.get(timeout=_POLL)
            except queue.Empty:
                continue

    def _fail(self, member: _Member, message: Reply | Ended) -> None:
        if member.error is not None:
            return
        if isinstance(message, Ended):
            member.error = member.worker.cause()
        else:
            reply = message.message[0]
            if isinstance(reply, BuildError):
                raise reply
            member.error = str(reply)
        arm = member.request.trial.arm
        text = f"the cost of a step of arm {arm!r} cannot be measured: {member.error}"
        if member is self.members[0]:
            raise CalibrationError(text)
        warn_user(text, CalibrationWarning)


@attrs.frozen(eq=False)
class _Calibration:
    """The measurement of a group of arms."""

    group: _Group
    blocks: Blocks
    order: random.Random
    on_part: Callable[[float], None]

    def run(self) -> list[StepCost | None]:
        """Return the cost of each member; None if it failed."""
        group = self.group
        lengths = group.expect(group.members, Length)
        blocks = self.blocks.fitted(min(one.batches for one in lengths.values()))
        for index, length in lengths.items():
            group.members[index].worker.send(blocks.starts(length.batches))
        for point in range(len(blocks.points)):
            group.expect(group.running, Arrived)
            for member in group.running:
                member.seconds.append([])
            for number in range(blocks.rounds + 1):
                self._round(blocks.steps, kept=number > 0)  # the first one warms up
            for member in group.running:
                member.worker.send(None)
            self.on_part((point + 1) / len(blocks.points))
        return [
            self._cost(one, blocks.points) if one.error is None else None for one in group.members
        ]

    def _round(self, steps: int, *, kept: bool) -> None:
        """Let each arm train a block of steps, one after the other."""
        members = self.group.running
        self.order.shuffle(members)
        for member in members:
            member.worker.send(steps)
            for message in self.group.expect([member], Measured).values():
                if kept:
                    member.seconds[-1].append(message.seconds / steps)

    @staticmethod
    def _cost(member: _Member, points: tuple[float, ...]) -> StepCost:
        trial = member.request.trial
        seconds = tuple(map(tuple, member.seconds))
        return StepCost(trial.arm, trial.settings, trial.duration, points, seconds)
