"""The questions: each takes a function that runs a job in a new process, and returns its answer.

An answer is a pair: whether the trainer does it, and what was seen.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch

from benchmarks.trainers.job import STEPS, Job

Run: TypeAlias = Callable[[Job], str]
"""Runs a job in a new process, and returns what it says when it fails, or ""."""
Answer: TypeAlias = tuple[bool, str]
NOTHING = "has no averages"
KILLS = 3, 4, 1, 3, 2
"""The number of steps of each process before it is killed: in the middle of epochs, and between."""


def resumes_within_an_epoch(run: Run, folder: Path) -> Answer:
    """Ask whether a run that is killed five times ends with the weights of one that is not."""
    whole, killed = Job(folder / "whole"), folder / "killed"
    run(whole)
    for steps in KILLS:
        run(Job(killed, kill_after=steps))
    if error := run(Job(killed)):
        return False, f"does not start again: {error}"
    return same(Job(killed), whole)


def means_over_the_whole_batch(run: Run, folder: Path) -> Answer:
    """Ask whether four parts of a batch, with other numbers of labels, train as the batch does."""
    undivided, divided = Job(folder / "undivided"), Job(folder / "divided", microbatches=4)
    run(undivided), run(divided)
    difference = farthest(divided, undivided)
    return difference < 1e-4, f"weights differ by {difference:.0e}" if difference else "same bits"


def survives_a_kill_within_a_save(run: Run, folder: Path) -> Answer:
    """Ask whether a run continues after a kill in the middle of a file of a checkpoint."""
    job = Job(folder / "cut")
    run(Job(job.folder, cut_after=4))
    before = len(job.losses())
    if error := run(job):
        return False, f"does not start again: {error}"
    first = job.losses()[before][0]
    return first > 1, f"continues at step {first} of {STEPS}"


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


QUESTIONS: dict[str, Callable[[Run, Path], Answer]] = {
    "killed five times, ends with the same weights": resumes_within_an_epoch,
    "the loss of the whole batch in four parts": means_over_the_whole_batch,
    "starts again after a kill within a save": survives_a_kill_within_a_save,
    "saves the averaged weights whose loss it reports": reports_the_averaged_weights,
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
