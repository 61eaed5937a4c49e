"""The questions: each takes a function that runs a job in a new process, and returns its answer.

An answer is a pair: whether the trainer does it, and what was seen.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch

from benchmarks.trainers.job import STEPS, Job

Run: TypeAlias = Callable[[Job], str]
"""Runs a job in a new process, and returns what it says when it fails, or ""."""
Answer: TypeAlias = tuple[bool, str]
NOTHING = "has none"
RUNS = 30
KILLS = 3, 4, 1, 3, 2
"""The number of steps of each process of the first run before it is killed."""


def resumes_within_an_epoch(run: Run, folder: Path) -> Answer:
    """Ask whether runs that are killed end with the weights of one that is not."""
    whole, found = Job(folder / "whole"), []
    run(whole)
    for number in range(RUNS):
        killed = folder / ("killed" if not number else f"killed-{number}")
        for steps in kills(number):
            run(Job(killed, kill_after=steps))
        error = run(Job(killed))
        found.append((False, f"starts no more: {error}") if error else same(Job(killed), whole))
    return counted(found)


def kills(number: int) -> Sequence[int]:
    """Return the steps of each process of a run before it is killed: anywhere in the run."""
    draw = random.Random(number)
    return KILLS if not number else (draw.randint(1, STEPS // 2), draw.randint(1, STEPS // 2 - 1))


def means_over_the_whole_batch(run: Run, folder: Path) -> Answer:
    """Ask whether four parts of a batch, with other numbers of labels, train as the batch does."""
    undivided, divided = Job(folder / "undivided"), Job(folder / "divided", microbatches=4)
    run(undivided), run(divided)
    difference = farthest(divided, undivided)
    return difference < 1e-4, f"weights differ by {difference:.0e}" if difference else "same bits"


def survives_a_kill_within_a_save(run: Run, folder: Path) -> Answer:
    """Ask whether runs continue after a kill in the middle of a file of a checkpoint."""
    found = []
    for number in range(RUNS):
        draw, job = random.Random(number), Job(folder / f"cut-{number}")
        run(Job(job.folder, cut_after=draw.randint(2, STEPS - 2), cut_at=draw.uniform(0.05, 0.95)))
        before = len(job.losses())
        error = run(job)
        first = [] if error else job.losses()[before:][:1]
        if error or not first:
            found.append((False, f"starts no more: {error or 'no step'}"))
        else:
            found.append((first[0][0] > 1, "continues" if first[0][0] > 1 else "begins again"))
    return counted(found)


def reports_the_averaged_weights(run: Run, folder: Path) -> Answer:
    """Ask whether the loss that is reported is the loss of the weights in the last checkpoint."""
    job = Job(folder / "average", average=True)
    if error := run(job):
        return False, error
    if not (job.folder / "results.json").exists():
        return False, NOTHING
    found = job.results()
    difference = abs(found["reported"] - found["of_saved"])
    return difference < 1e-5, f"reports {found['reported']:.4f}, saves {found['of_saved']:.4f}"


def repeats_in_another_order(run: Run, folder: Path) -> Answer:
    """Ask whether another order of the list of algorithms trains the same weights."""
    names = "MixUp", "LabelSmoothing"
    first, other = (
        Job(folder / f"order-{order[0]}", algorithms=order) for order in (names, names[::-1])
    )
    for job in (first, other):
        error = run(job)
        if not (job.folder / "applied").exists():
            return False, NOTHING
        if error:
            return False, error
    return same(other, first)


def counted(found: Sequence[Answer]) -> Answer:
    """Return whether all runs do it, how many do, and what was seen most often of the others."""
    failed = [seen for does, seen in found if not does]
    seen = Counter(failed or [seen for _, seen in found]).most_common(1)[0][0]
    count = f"{len(found) - len(failed)} of {len(found)}"
    return not failed, f"{count}; otherwise {seen}" if failed else f"{count}: {seen}"


QUESTIONS: dict[str, Callable[[Run, Path], Answer]] = {
    "killed and resumed, ends with the same weights": resumes_within_an_epoch,
    "the loss of the whole batch in four parts": means_over_the_whole_batch,
    "starts again after a kill within a save": survives_a_kill_within_a_save,
    "saves the averaged weights whose loss it reports": reports_the_averaged_weights,
    "another order of its algorithms, the same weights": repeats_in_another_order,
}


def same(job: Job, other: Job) -> Answer:
    """Compare the weights at the end of two runs."""
    difference = farthest(job, other)
    return (
        not difference,
        f"weights differ by {difference:.0e}" if difference else "same bits",
    )


def farthest(job: Job, other: Job) -> float:
    """Return the largest difference of two weights."""
    ours, theirs = job.weights(), other.weights()
    found: list[Any] = [torch.dist(ours[name], theirs[name], torch.inf) for name in ours]
    return float(max(found))
