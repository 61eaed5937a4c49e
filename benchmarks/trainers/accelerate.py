"""A loop with Accelerate, by its guide to checkpoints."""

from pathlib import Path
from typing import Any

import accelerate
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import ProjectConfiguration, set_seed

from benchmarks.trainers.job import EPOCHS, LR, SEED, Job, loss_fn


class Progress:
    """The number of steps, which is saved."""

    steps = 0

    def state_dict(self) -> dict[str, int]:
        """Return the number."""
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Set the number."""
        self.steps = state["steps"]


def version() -> str:
    """Return the version."""
    return str(accelerate.__version__)


def train(job: Job) -> None:
    """Train, from the last checkpoint if there is one."""
    set_seed(SEED)
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=job.microbatches,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
        project_config=ProjectConfiguration(str(job.folder), automatic_checkpoint_naming=True),
    )
    plain, progress = job.model(), Progress()
    model, optimizer, loader = accelerator.prepare(
        plain,
        torch.optim.AdamW(plain.parameters(), lr=LR),
        job.loader(job.microbatch_size, job.shuffles),
    )
    accelerator.register_for_checkpointing(progress)
    if checkpoints := sorted(job.checkpoints.glob("checkpoint_*"), key=_number):
        accelerator.load_state(str(checkpoints[-1]))
        accelerator.project_configuration.iteration = _number(checkpoints[-1]) + 1
    of_epoch = len(loader) // job.microbatches
    for epoch in range(progress.steps // of_epoch, EPOCHS):
        loader.set_epoch(epoch)
        done = progress.steps - epoch * of_epoch
        batches: Any = loader
        if done:
            batches = accelerator.skip_first_batches(loader, done * job.microbatches)
        for inputs, labels in batches:
            with accelerator.accumulate(model):
                loss = loss_fn(model(inputs), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                progress.steps += 1
                job.record(progress.steps, loss)
                accelerator.save_state()
    job.finish(plain.state_dict())


def _number(path: Path) -> int:
    return int(path.name.rsplit("_", 1)[1])
