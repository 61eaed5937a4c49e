"""Trainings in external loops on two processes: functions that those processes import."""

import os
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from composable.algorithms import BlurPool
from composable.integrations import LoopAdapter
from tests.integrations.loops import LOOPS, Run, own_weights, row
from tests.integrations.table import OPTIONS, SGD, SIX, dataset, dense_net, net
from tests.support.data import NoisyExamples
from tests.support.loop_losses import flat
from tests.support.models import weights
from tests.support.processes import connect

SIZE, BATCH, COUNT = 2, 4, 16
"""The processes, the examples of a batch of one process, and those of the data."""
TESTED = ("own loop", "Accelerate", "Lightning, mixin", "HF, mixin")
INTERLEAVED = ("own loop", "Lightning, mixin")
"""The loops whose process `r` has the examples `r`, `r + 2`, ...; others divide by batches."""


def of_row(name: str, *, accumulate_batches: int = 1, **changes: Any) -> Run:
    """Return the run of a row, for two epochs of two batches."""
    return row.__wrapped__(
        name,
        examples=COUNT,
        accumulate_batches=accumulate_batches,
        options={**OPTIONS.get(name, {}), "max_duration": f"{4 // accumulate_batches}ba"},
        evaluates=False,
        **changes,
    )


def images(name: str = "") -> TensorDataset:
    return TensorDataset(*dataset(name, COUNT))


def global_batches(loop: str, name: str) -> list[Any]:
    """Return the batches of all processes together, of which each has one shard."""
    order = torch.arange(COUNT)
    if loop in INTERLEAVED:
        order = order.view(-1, BATCH, SIZE).transpose(1, 2).flatten()
    return [images(name)[part] for part in order.split(SIZE * BATCH)]


def divided(name: str = "") -> DataLoader[Any]:
    """Build a loader of this process's part of the data."""
    own: Any = DistributedSampler(images(name), SIZE, int(os.environ["RANK"]), shuffle=False)
    return DataLoader(images(name), BATCH, sampler=own)


def train(loop: str, names: list[str], **changes: Any) -> dict[str, Any]:
    """Train with each of the algorithms, and return what each training leaves."""
    warnings.simplefilter("ignore")
    connect()

    def run(name: str) -> Run:  # no library divides the loaders of some loops
        parts = {"batches": partial(divided, name)} if loop in INTERLEAVED else {}
        return of_row(name, processes=SIZE, **parts, **changes)

    return {name: outcome_of(LOOPS[loop](run(name))) for name in names}


def continued(loop: str, folder: Path) -> list[Any]:
    """Train to the third of four steps, and then from the checkpoint; return both outcomes."""
    warnings.simplefilter("ignore")
    connect()
    parts = {"batches": divided} if loop in INTERLEAVED else {}
    run = of_row(SIX, processes=SIZE, **parts)
    part = lightning_part if loop == "Lightning, mixin" else huggingface_part
    return [outcome_of(part(run, folder, steps)) for steps in (3, 4)]


def lightning_part(run: Run, folder: Path, steps: int) -> LoopAdapter:
    """Train to a step from the latest checkpoint on."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    from composable.integrations.lightning import SafeCheckpointIO, latest_checkpoint
    from tests.integrations.lightning_loop import Composed, fit, trainer_of

    t = run.adapter(run.net(), precision="fp32")
    saver = ModelCheckpoint(folder, every_n_train_steps=1)
    trainer = trainer_of(run, saver, plugins=[SafeCheckpointIO()], max_steps=steps)
    fit(trainer, Composed(t, run), latest_checkpoint(folder))
    return t


def huggingface_part(run: Run, folder: Path, steps: int) -> LoopAdapter:
    """Train to a step from the latest checkpoint on."""
    from composable.integrations.huggingface import SafeCheckpointCallback
    from tests.integrations.huggingface_loop import start

    changes = {"save_strategy": "steps", "save_steps": 1, "max_steps": steps}
    t, trainer = start(run, folder, changes=changes, callbacks=[SafeCheckpointCallback(1)])
    trainer.train(resume_from_checkpoint=True)
    return t


def outcome_of(t: LoopAdapter) -> dict[str, Any]:
    """Return what a training leaves."""
    with t.evaluating() as model:
        evaluated = weights(model)
    return outcome(t.model, own_weights(t), evaluated, t.state)


def outcome(model: nn.Module, own: Any, evaluated: Any, state: Any) -> dict[str, Any]:
    """Return the parameters after training, those of an evaluation, and the clock."""
    names = [name for name, _ in model.named_parameters()]
    now = state.timestamp
    return {
        # As lists: a process that has ended cannot share tensors.
        "trained": flat({name: own[name] for name in names}),
        "evaluated": flat({name: evaluated[name] for name in names}),
        "clock": [now.batch, now.sample],
    }


def different_seeds() -> None:
    """Train with another seed on each process."""
    connect()
    t = Run().adapter(model := dense_net(), SGD(model.parameters()), seed=dist.get_rank())
    next(t.epoch(divided()))


def noise() -> list[list[float]]:
    """Return the first batch of an epoch, and the dropout of its forward pass."""
    connect()
    t = Run().adapter(model := dense_net(), SGD(model.parameters()))
    inputs, _ = next(t.epoch(DataLoader(NoisyExamples(COUNT, images=True), BATCH)))
    return [inputs.flatten().tolist(), torch.rand(4).tolist()]


def wrapped_model() -> None:
    """Pass a wrapped model."""
    connect()
    wrapped: nn.Module = DistributedDataParallel(net("BlurPool"))
    Run([BlurPool(min_channels=0)]).adapter(wrapped)
