"""Short runs by other trainers, which save a checkpoint after some of their steps.

Each function trains `STEPS` steps of a `Case` on the same batches, in order, and returns the
weights after each step. The folder gets a checkpoint after each step in `SAVED`, at `path_of(...)`.
"""

import random
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import attrs
import lightning.pytorch as L
import numpy as np
import torch
from accelerate import Accelerator
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, SequentialLR, StepLR
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset
from transformers import Trainer as HuggingFaceTrainer
from transformers import TrainerCallback, TrainingArguments

from tests.support.data import examples
from tests.support.models import seeded
from tests.support.runs import sgd

EPOCH, STEPS, SAVED = 5, 13, (3, 5, 7, 10)
"""Batches of an epoch, steps, and those after which a checkpoint is saved: also ends of epochs."""


def two_groups(parameters, kind=AdamW, **options):
    """Build an optimizer with a group for biases."""
    parameters = list(parameters)
    plain = [one for one in parameters if one.dim() > 1]
    biases = [one for one in parameters if one.dim() == 1]
    groups = [{"params": plain, "weight_decay": 0.1}, {"params": biases, "lr": 0.02}]
    return kind(groups, lr=0.01, weight_decay=0.0, **options)


OPTIMIZERS = {
    "Adam": partial(Adam, lr=0.01),
    "AdamW with two groups": two_groups,
    "SGD with momentum": sgd,
}
SCHEDULERS: dict[str, Any] = {
    "none": None,
    "StepLR": partial(StepLR, step_size=2, gamma=0.5),
    "cosine": partial(CosineAnnealingLR, T_max=9),
    "LambdaLR": partial(LambdaLR, lr_lambda=lambda step: 1 / (1 + step)),
    "warm-up": lambda optimizer: SequentialLR(
        optimizer, [LambdaLR(optimizer, lambda s: (s + 1) / 4), StepLR(optimizer, 3)], [4]
    ),
}


def name_of(value: Any) -> str:
    """Return a name for a case, without the address of a function."""
    return getattr(value, "__name__", None) or str(value)


@attrs.frozen
class Case:
    """What is trained; by default with a scheduler that steps after each batch."""

    optimizer: str = "Adam"
    scheduler: str = "StepLR"
    every_epoch: bool = False

    def net(self):
        """Build the model, always with the same weights."""
        return seeded(lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)))

    def parts(self, net):
        """Build an optimizer and a scheduler or None."""
        optimizer = OPTIMIZERS[self.optimizer](net.parameters())
        scheduler = SCHEDULERS[self.scheduler]
        return optimizer, None if scheduler is None else scheduler(optimizer)


def data():
    """Return the examples of an epoch, four a batch, of which the last is smaller."""
    return TensorDataset(*examples(4 * EPOCH - 1))


def batches():
    """Return the batches of an epoch."""
    return list(DataLoader(data(), 4))


def weights(module):
    """Return a copy of the state dict of the model inside of a module."""
    net = next(one for one in module.modules() if isinstance(one, nn.Sequential))
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


# --- Lightning


class Module(L.LightningModule):
    """A model, an optimizer and a scheduler, for Lightning."""

    def __init__(self, case):
        super().__init__()
        self.case, self.model = case, case.net()

    def training_step(self, batch, batch_idx):
        return cross_entropy(self.model(batch[0]), batch[1])

    def configure_optimizers(self):
        optimizer, scheduler = self.case.parts(self.model)
        interval = "epoch" if self.case.every_epoch else "step"
        steps = {"scheduler": scheduler, "interval": interval}
        return {"optimizer": optimizer, **({"lr_scheduler": steps} if scheduler else {})}


class Saves(Callback):
    """Records the weights of each step, and saves some."""

    def __init__(self, folder, at_end_of_epoch):
        self.folder, self.at_end, self.seen = folder, at_end_of_epoch, []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.seen.append(weights(module))
        if trainer.global_step in SAVED and not (self.at_end and batch_idx == EPOCH - 1):
            self.save(trainer)

    def on_train_epoch_end(self, trainer, module):
        if self.at_end and trainer.global_step in SAVED:
            self.save(trainer)

    def save(self, trainer):
        trainer.save_checkpoint(self.folder / f"{trainer.global_step}.ckpt", weights_only=False)


def lightning(case, folder, *, at_end_of_epoch=True, **options):
    """Train by Lightning, which saves the last batch of an epoch before the end of the epoch."""
    saves = Saves(folder, at_end_of_epoch)
    trainer = L.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        callbacks=[saves],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(Module(case), DataLoader(data(), 4))
    return saves.seen


# --- Hugging Face


class WithLoss(nn.Module):
    """A model that returns its loss."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, inputs, labels):
        logits = self.net(inputs)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


class Records(TrainerCallback):
    """Records the weights of each step."""

    def __init__(self):
        self.seen = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.seen.append(weights(model))


class InOrder(HuggingFaceTrainer):
    """Reads the examples in their order."""

    def _get_train_sampler(self, train_dataset=None):
        return SequentialSampler(self.train_dataset)


def huggingface(case, folder, **options):
    """Train by Hugging Face's Trainer."""
    optimizer, scheduler = case.parts(net := case.net())
    records = Records()
    arguments = TrainingArguments(
        folder,
        max_steps=STEPS,
        per_device_train_batch_size=4,
        save_steps=1,
        max_grad_norm=0,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        **options,
    )
    scheduler = scheduler or LambdaLR(optimizer, lambda step: 1)
    pairs = [{"inputs": inputs, "labels": label} for inputs, label in data()]
    InOrder(
        WithLoss(net),
        arguments,
        train_dataset=pairs,
        optimizers=(optimizer, scheduler),
        callbacks=[records],
    ).train()
    return records.seen


# --- loops of one's own


def loop(case, folder, save, prepare=lambda *parts: parts):
    """Train by a loop that calls `save` with the step, the model, the optimizer, the scheduler."""
    net = case.net()
    optimizer, scheduler = case.parts(net)
    net, optimizer, scheduler = prepare(net, optimizer, scheduler)
    seen, every = [], EPOCH if case.every_epoch else 1
    stream = (batch for _ in count() for batch in batches())
    for step, (inputs, targets) in enumerate(islice(stream, STEPS), 1):
        cross_entropy(net(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None and step % every == 0:
            scheduler.step()
        seen.append({name: tensor.clone() for name, tensor in net.state_dict().items()})
        if step in SAVED:
            save(step, net, optimizer, scheduler)
    return seen


def accelerate(case, folder, **options):
    """Train by a loop with Accelerate."""
    accelerator = Accelerator(cpu=True)

    def prepare(net, optimizer, scheduler):
        parts = [net, optimizer, *([scheduler] if scheduler else [])]
        return (*accelerator.prepare(*parts), None)[:3]

    def save(step, *parts):
        accelerator.save_state(str(folder / str(step)), **options)

    return loop(case, folder, save, prepare)


def composer_state(net, optimizer, scheduler, now, *, by_name=True):
    """Return what Composer saves, in the layout of its `State.state_dict` and `save_checkpoint`."""
    optimizers = optimizer.state_dict()
    if by_name:  # torch.distributed.checkpoint's, as of PyTorch 2.4
        names = [f"module.{name}" for name, _ in net.named_parameters()]
        position = {id(one): name for name, one in zip(names, net.parameters(), strict=True)}
        held = [position[id(one)] for group in optimizer.param_groups for one in group["params"]]
        for group in optimizers["param_groups"]:
            group["params"] = [held[number] for number in group["params"]]
        optimizers["state"] = {held[number]: v for number, v in optimizers["state"].items()}
    schedulers = {} if scheduler is None else {type(scheduler).__name__: scheduler.state_dict()}
    state = {
        "model": {f"module.{name}": tensor for name, tensor in net.state_dict().items()},
        "optimizers": {type(optimizer).__name__: optimizers},
        "schedulers": schedulers,
        "algorithms": [("MixUp", {"repr": "MixUp(alpha=0.2)"})],
        "callbacks": {"CheckpointSaver": {"all_saved_checkpoints_to_timestamp": []}},
        "scaler": {"GradScaler": {}},
        "timestamp": {"Timestamp": now},
        "rank_zero_seed": 17,
        "run_name": "1700000000-calm-fox",
        "dataset_state": {"train": None, "eval": {}},
        "integrations": {},
        "metadata": {"torch_version": "2.7.0", "device": "cpu"},
    }
    numpy = np.random.RandomState(1).get_state()  # what Composer saves
    rng = {"python": random.getstate(), "numpy": numpy, "torch": torch.get_rng_state()}
    return {"state": state, "rng": [rng]}


def composer_time(step):
    """Return the time that Composer counts after a step."""
    epoch, within = divmod(step, EPOCH)
    wall = {f"{name}_wct": timedelta(seconds=step) for name in ("total", "epoch", "batch")}
    samples = {"sample": 4 * step - epoch, "sample_in_epoch": 4 * within}
    none = dict.fromkeys(("iteration", "token", "epoch_in_iteration", "token_in_epoch"), 0)
    return {**none, **samples, "epoch": epoch, "batch": step, "batch_in_epoch": within, **wall}


def composer(case, folder, **options):
    """Train by a plain loop that saves in the layout of Composer."""

    def save(step, *parts):
        tree = composer_state(*parts, composer_time(step), **options)
        torch.save(tree, path_of(composer, folder, step))

    return loop(case, folder, save)


NAMES = {
    lightning: "{}.ckpt",
    huggingface: "checkpoint-{}",
    accelerate: "{}",
    composer: "ba{}-rank0.pt",
}


def path_of(library: Callable[..., Any], folder: Path, step: int) -> Path:
    """Return the checkpoint that a library saved after a step."""
    return folder / NAMES[library].format(step)
