"""The Trainer of this library."""

from functools import partial
from typing import Any

import torch

import composable
from benchmarks.trainers.job import EPOCHS, LR, SEED, Job, data, loss_fn
from composable import Callback, Trainer
from composable.algorithms import EMA, LabelSmoothing, MixUp
from composable.checkpoint import load_weights


class Record(Callback):
    """Records the loss of each step."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def batch_end(self, state: Any, logger: Any) -> None:
        """Record the loss."""
        self.job.record(state.timestamp.batch, state.loss)


def version() -> str:
    """Return the version."""
    return composable.__version__


def train(job: Job) -> None:
    """Train, from the last checkpoint if there is one."""
    algorithms = job.apply({"MixUp": MixUp, "LabelSmoothing": LabelSmoothing})
    trainer = Trainer(
        job.model(),
        train_dataloader=job.loader(shuffle=job.shuffles),
        eval_dataloader=torch.utils.data.DataLoader(data(), batch_size=40) if job.average else None,
        loss_fn=loss_fn,
        optimizers=partial(torch.optim.AdamW, lr=LR),
        algorithms=[*algorithms, *([EMA("3ba")] if job.average else [])],
        callbacks=[Record(job)],
        grad_accum=job.microbatches,
        max_duration=f"{EPOCHS}ep",
        save_folder=job.checkpoints,
        save_interval="1ba",
        autoresume=True,
        progress_bar=False,
        seed=SEED,
    )
    trainer.fit()
    saved, metrics = None, trainer.state.metrics
    if job.average:
        load_weights(model := job.model(), job.checkpoints / "ep3-ba15")
        saved = model.state_dict()
    job.finish(
        trainer.state.model.state_dict(), metrics["eval"]["loss"] if metrics else None, saved
    )
