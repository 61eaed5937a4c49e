"""Trainings in other loops that are killed and started again: the same script does both.

`tools.kill_campaign --loops` runs them. A further one is a class with what `Script` has,
and a line in `SCRIPTS`.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import attrs
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from composable.algorithms import EMA, MixUp
from composable.checkpoint import files
from composable.checkpoint.errors import CheckpointError, MissingCheckpointError
from composable.checkpoint.sealing import verify_seal
from composable.integrations import LoopAdapter, adapt_loop
from composable.utils.reproducibility import seed_context
from tests.integrations.table import image_net
from tests.support.data import examples
from tests.support.models import weights
from tests.support.own_run import OwnRun

EPOCHS = 3
EXAMPLES = 20
CHECKPOINTS, SAVED = "checkpoints", "saved.txt"


class Script(Protocol):
    """A training of one process."""

    library: str
    """What it imports."""

    def train(self, folder: Path) -> Any:
        """Start the training of a folder or continue it, and return what is compared.

        Checkpoints are written to its folder `CHECKPOINTS`. `note` is called after each.
        """

    def checkpoints(self, folder: Path) -> tuple[list[int], int]:
        """Return the steps of the whole checkpoints of a folder, and the number of damaged ones."""


def note(folder: Path, step: int) -> None:
    """Write down that the checkpoint of a step is on disk."""
    descriptor = os.open(folder / SAVED, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{step}\n".encode())
    os.close(descriptor)


def adapter(model: Any, **options: Any) -> LoopAdapter:
    options = {"max_duration": f"{EPOCHS}ep", "seed": 17, **options}
    return adapt_loop([MixUp(), EMA("2ba")], model, **options)


@attrs.frozen
class Lightning:
    """Lightning's Trainer with the mixin, checkpoints after steps, or after validations."""

    options: Any = attrs.field(factory=lambda: {"every_n_train_steps": 1, "save_top_k": 1})
    """How often `ModelCheckpoint` saves, and how many it keeps."""
    accumulated: int = 1
    callbacks: Any = ()
    library: str = "lightning.pytorch"

    def train(self, folder: Path) -> Any:
        import lightning.pytorch as L
        from lightning.pytorch.callbacks import ModelCheckpoint

        from composable.integrations.lightning import (
            LoopAdapterMixin,
            SafeCheckpointIO,
            latest_checkpoint,
        )

        class Module(LoopAdapterMixin, L.LightningModule):
            def __init__(self, adapter):
                super().__init__()
                self.adapter, self.net = adapter, adapter.model

            def configure_optimizers(self):
                optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
                scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
                return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

            def validation_step(self, batch, batch_idx):
                self.log("loss", cross_entropy(self.net(batch[0]), batch[1]))

        class Notes(SafeCheckpointIO):
            def save_checkpoint(self, checkpoint, path, storage_options=None):
                super().save_checkpoint(checkpoint, path, storage_options)
                note(folder, checkpoint["global_step"])

            def remove_checkpoint(self, path):
                super().remove_checkpoint(path)
                assert latest_checkpoint(folder / CHECKPOINTS)

        t = adapter(image_net(), loss_fn=cross_entropy)
        data = TensorDataset(*examples(EXAMPLES, images=True))
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=EPOCHS,
            accumulate_grad_batches=self.accumulated,
            callbacks=[*self.callbacks, ModelCheckpoint(folder / CHECKPOINTS, **self.options)],
            plugins=[Notes()],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        path = latest_checkpoint(folder / CHECKPOINTS)
        module, loader = Module(t), t.seeded(DataLoader(data, 4, shuffle=True))
        trainer.fit(module, loader, DataLoader(data, 10), ckpt_path=path)
        return [weights(t.model), t.state.timestamp.batch]

    def checkpoints(self, folder: Path) -> tuple[list[int], int]:
        whole, broken = files.find(folder / CHECKPOINTS, thorough=True)
        return [found.manifest.batch for found in whole], len(broken)


@attrs.frozen
class HuggingFace:
    """Hugging Face's Trainer, with or without the mixin."""

    mixin: bool = True
    library: str = "transformers.trainer"

    def train(self, folder: Path) -> Any:
        import transformers
        from transformers import ResNetConfig, ResNetForImageClassification, TrainingArguments

        from composable.integrations.huggingface import (
            LogitsModel,
            LoopAdapterMixin,
            SafeCheckpointCallback,
            latest_checkpoint,
        )

        class Notes(SafeCheckpointCallback):
            def on_save(self, args, state, control, **kwargs):
                super().on_save(args, state, control, **kwargs)
                note(folder, state.global_step)

        config = ResNetConfig(
            num_channels=2, embedding_size=4, hidden_sizes=[4], depths=[1], layer_type="basic"
        )
        config.num_labels = 3
        with seed_context(0):
            model = LogitsModel(ResNetForImageClassification(config))
            model.model.resnet.embedder = torch.nn.Sequential(  # whose random numbers are global
                model.model.resnet.embedder, torch.nn.Dropout(0.25)
            )
        args = TrainingArguments(
            str(folder / CHECKPOINTS),
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=4,
            save_strategy="steps",
            save_steps=1,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            seed=3,
            logging_strategy="no",
        )
        inputs, labels = examples(EXAMPLES, images=True)
        data = [{"pixel_values": x, "labels": y} for x, y in zip(inputs, labels, strict=True)]
        options = {"args": args, "train_dataset": data, "callbacks": [Notes(keep=1)]}
        if not self.mixin:
            trainer = transformers.Trainer(model.model, **options)
            trainer.train(resume_from_checkpoint=latest_checkpoint(args.output_dir))
            return [weights(model.model), trainer.optimizer.state_dict()]

        class Trainer(LoopAdapterMixin, transformers.Trainer):
            pass

        t = adapter(model, input_key="pixel_values", target_key="labels")
        trainer = Trainer(t.model.model, adapter=t, **options)
        trainer.train(resume_from_checkpoint=True)
        return [weights(t.model), trainer.optimizer.state_dict(), t.state.timestamp.batch]

    def checkpoints(self, folder: Path) -> tuple[list[int], int]:
        whole, broken = [], 0
        for path in (folder / CHECKPOINTS).glob("checkpoint-*"):
            try:
                verify_seal(path)
                whole.append(int(path.name.rpartition("-")[2]))
            except MissingCheckpointError:  # not sealed yet
                continue
            except CheckpointError:
                broken += 1
        return whole, broken


@attrs.frozen
class OwnLoop:
    """A loop written by hand, which saves at intervals or by itself."""

    run: OwnRun
    library: str = "composable.integrations"

    def train(self, folder: Path) -> Any:
        return self.run.train(folder / CHECKPOINTS, note=partial(note, folder))

    def checkpoints(self, folder: Path) -> tuple[list[int], int]:
        if not (folder / CHECKPOINTS).is_dir():
            return [], 0
        whole, broken = files.find(folder / CHECKPOINTS, thorough=True)
        return [found.manifest.batch for found in whole], len(broken)


SCRIPTS: dict[str, Script] = {
    "own loop": OwnLoop(OwnRun()),
    "own loop, a step of several batches": OwnLoop(OwnRun("noisy", parts=2, saves_epochs=True)),
    "own loop, a stateful stream": OwnLoop(OwnRun("stateful stream", save_interval="2ba")),
    "Lightning": Lightning(),
    "Lightning, a step of several batches": Lightning(
        {"every_n_train_steps": 2, "save_top_k": 1, "save_last": "link"}, accumulated=2
    ),
    "Lightning, after validations": Lightning(
        {"monitor": "loss", "save_top_k": 1, "save_last": True}
    ),
    "Hugging Face": HuggingFace(),
    "Hugging Face, no algorithms": HuggingFace(mixin=False),
}
"""The trainings by name."""
