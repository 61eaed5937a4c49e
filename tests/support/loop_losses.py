"""Losses of steps in external loops, and the Trainer's: functions that processes import too."""

from functools import partial
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from composable import SplitLossError
from tests.integrations.loops import LOOPS, Run, own_weights
from tests.support.losses import focal, masked
from tests.support.processes import connect
from tests.support.runs import training_weights
from tests.support.split_losses import ALGORITHMS, LOSSES, examples, model


def kept(batch: Any) -> Tensor:
    return (batch[1] != 1).sum()


LOSSES = {
    **LOSSES,
    "declared, examples": partial(focal),
    "declared, of the batch": partial(masked),
    "declared, of outputs and the batch": partial(masked),
}
DECLARED: dict[str, Any] = {
    "declared, examples": "examples",
    "declared, of the batch": kept,
    "declared, of outputs and the batch": lambda outputs, batch: kept(batch),
}
PARTS = ([[5, 2, 4], [3, 6, 2]], 2, 1)
"""The sizes of the batches of each process, those of a step, and the seed."""

SGD = partial(torch.optim.SGD, lr=0.01)


def run_of(name: str, batches: Any, algorithms: str = "plain", **changes: Any) -> Run:
    """Return a run of one epoch with a loss of the table, on batches or what builds a loader."""
    options = {"loss_mean_over": DECLARED.get(name)}
    defaults = {"net": model, "loss_fn": LOSSES[name], "optimizer": SGD, "epochs": 1}
    defaults |= {"batches": batches if callable(batches) else lambda: batches, "options": options}
    return Run(ALGORITHMS[algorithms], **{**defaults, **changes})


def by_trainer(run: Run, **options: Any) -> Any:
    """Return the weights and the last loss of the Trainer, or "refused"."""
    trainer = run.trainer(check_effects=False, **options)
    try:
        trainer.fit()
    except SplitLossError:
        return "refused"
    return flat(training_weights(trainer)), float(trainer.state.loss)


def by_loop(run: Run, loop: str = "own loop", *place: Any, **resume: Any) -> Any:
    """Return the weights and the last loss of a loop, the mean over processes, or "refused"."""
    try:
        t = LOOPS[loop](run, *place, **resume)
    except SplitLossError as error:
        text = str(error)
        advises = "use the Trainer" in text or "WholeLoss" not in text
        return "refused" if advises and len(text.split()) <= 60 else text
    loss = t.state.loss.detach().clone()
    if run.processes > 1:
        dist.all_reduce(loss)
    return flat(own_weights(t)), float(loss / run.processes)


def flat(weights: Any) -> list[float]:
    """Return weights as numbers, which processes send to each other."""
    return torch.cat([one.flatten() for one in weights.values()]).tolist()  # type: ignore[no-any-return]


def parts_of_process(sizes: list[list[int]], rank: int, seed: int = 0) -> list[Any]:
    """Return the batches of a process, of one set of examples."""
    all_sizes = [size for own in sizes for size in own]
    split = (one.split(all_sizes) for one in examples(sum(all_sizes), seed))
    start = [0, *accumulate(map(len, sizes))][rank]
    return list(zip(*split, strict=True))[start : start + len(sizes[rank])]


def in_processes(
    names: list[str], sizes: list[list[int]], count: int, seed: int, algorithms: str = "plain"
) -> dict[str, Any]:
    """Train in this process with each of some losses."""
    connect()
    batches = parts_of_process(sizes, dist.get_rank(), seed)
    given = {"accumulate_batches": count, "processes": len(sizes)}
    return {name: by_loop(run_of(name, batches, algorithms, **given)) for name in names}


def joined(sizes: list[list[int]], count: int, seed: int) -> list[Any]:
    """Return a batch of the examples of all processes, for each step."""
    parts = [parts_of_process(sizes, rank, seed) for rank in range(len(sizes))]
    steps = range(0, len(sizes[0]), count)
    owns = [[one for own in parts for one in own[i : i + count]] for i in steps]
    return [tuple(torch.cat(one) for one in zip(*own, strict=True)) for own in owns]


def in_library(loop: str, names: list[str]) -> dict[str, Any]:
    """Train in this process with each of some losses, in a loop of a library."""
    connect()
    data = TensorDataset(*examples(24))
    own: Any = DistributedSampler(data, shuffle=False) if "Lightning" in loop else None
    loader = partial(DataLoader, data, 3, sampler=own)
    given = {"accumulate_batches": 2, "processes": 2}
    return {name: by_loop(run_of(name, loader, **given), loop) for name in names}


def of_all_processes() -> list[Any]:
    """Return the batches of two steps of all processes of `in_library`, in any order."""
    return list(zip(*(one.split(12) for one in examples(24)), strict=True))
