"""Lightning."""

from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging, ModelCheckpoint

from benchmarks.trainers.job import EPOCHS, LR, SEED, Job, data, loss_fn


class Module(lightning.LightningModule):
    """The model, its loss and its optimizer."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.model = job.model()

    def training_step(self, batch: Any, _: int) -> Any:
        """Compute the loss."""
        return loss_fn(self.model(batch[0]), batch[1])

    def validation_step(self, batch: Any, _: int) -> None:
        """Log the loss."""
        self.log("loss", loss_fn(self.model(batch[0]), batch[1]), batch_size=len(batch[0]))

    def configure_optimizers(self) -> Any:
        """Build the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=LR)


class Record(Callback):
    """Records the loss of each step."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
        """Record the loss."""
        if not trainer.fit_loop._should_accumulate():
            self.job.record(trainer.global_step, outputs["loss"])


def version() -> str:
    """Return the version."""
    return str(lightning.__version__)


def train(job: Job) -> None:
    """Train, from the last checkpoint if there is one."""
    lightning.seed_everything(SEED, verbose=False)
    module = Module(job)
    saves = ModelCheckpoint(job.checkpoints, every_n_train_steps=1, save_last=True)
    callbacks: list[Callback] = [Record(job), saves]
    if job.average:
        callbacks.append(EMAWeightAveraging(decay=0.8))
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        accumulate_grad_batches=job.microbatches,
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    loader = job.loader(job.microbatch_size, shuffle=job.shuffles)
    held_out = torch.utils.data.DataLoader(data(), batch_size=40) if job.average else None
    trainer.fit(module, loader, held_out, ckpt_path="last", weights_only=False)
    saved = None
    if job.average:
        found = torch.load(saves.last_model_path, weights_only=False)["state_dict"]
        saved = {name.removeprefix("model."): one for name, one in found.items()}
    reported = trainer.callback_metrics.get("loss")
    job.finish(module.model.state_dict(), None if reported is None else float(reported), saved)
