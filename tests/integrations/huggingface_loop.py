"""Hugging Face's Trainer as a loop of tests/integrations/loops.py."""

import tempfile
from contextlib import nullcontext
from functools import partial

import attrs
import torch
import transformers
from accelerate.state import AcceleratorState
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import ResNetConfig, ResNetForImageClassification, TrainingArguments
from transformers.modeling_outputs import ImageClassifierOutput

from composable.integrations.huggingface import (
    STATE_NAME,
    LogitsModel,
    LoopAdapterCallback,
    LoopAdapterMixin,
)
from composable.utils.reproducibility import seed_context, seed_step
from tests.integrations import table

# What these replace or need isn't in a residual net.
NOT_ON_RESNET = {
    "Dropout",
    "GyroDropout",
    "LowPrecisionGroupNorm",
    "LowPrecisionLayerNorm",
    *table.ON_SEQUENCES,
}


def resnet():
    """Strided convolutions, a max-pool and normalisations with statistics; from a config."""
    config = ResNetConfig(
        num_channels=2, embedding_size=4, hidden_sizes=[4, 4], depths=[1, 1], layer_type="basic"
    )
    config.num_labels = 3
    with seed_context(0):
        return LogitsModel(ResNetForImageClassification(config))


class Classifier(nn.Module):
    """A model, as this Trainer calls one."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, pixel_values, labels=None):
        logits = self.net(pixel_values)
        loss = None if labels is None else cross_entropy(logits, labels)
        return ImageClassifierOutput(loss=loss, logits=logits)


def keyed_net(name):
    """Build the model on which an algorithm is tested."""
    return LogitsModel(Classifier(table.net(name))) if name in NOT_ON_RESNET else resnet()


class Plain(transformers.Trainer):
    """Without shuffling; dropout is seeded, which nothing does where a callback is alone."""

    run = None

    def get_train_dataloader(self):
        return self.accelerator.prepare(DataLoader(self.train_dataset, self.run.batch_size))

    def compute_loss(self, *args, **kwargs):
        seed_step(17, self.state.global_step)
        return super().compute_loss(*args, **kwargs)

    def compute_loss_context_manager(self):
        return self.run.autocast() if self.run.precision == "fp16" else nullcontext()


class Composed(LoopAdapterMixin, Plain):
    """The same Trainer with transforms."""

    compute_loss = LoopAdapterMixin.compute_loss


def arguments(folder, kind=TrainingArguments, **changes):
    defaults = {
        "num_train_epochs": 2,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0,
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    return kind(str(folder), **{**defaults, **changes})


def start(run, folder, *, mixin=True, model=None, net=Classifier, changes=(), **options):
    """Return an adapter and its trainer, of a model or of the adapter's."""
    AcceleratorState._reset_state(reset_partial_state=True)  # it is shared by the process
    if not run.keyed:
        build = run.net
        wrap = partial(LogitsModel, loss_fn=run.loss_fn)
        run = attrs.evolve(run, keyed=True, net=lambda: wrap(net(build())))
    t = run.adapter(run.net())
    if model is None:
        model = getattr(t.model, "model", None) or run.net().model
    args = arguments(
        folder,
        **{
            "num_train_epochs": run.epochs,
            "gradient_accumulation_steps": run.accumulate_batches,
            "bf16": run.precision == "bf16",
            "eval_strategy": "epoch" if run.evaluates else "no",
            "ddp_find_unused_parameters": True if run.processes > 1 else None,
            **dict(changes),
        },
    )
    data = run.dicts(run.data(run.examples))
    adapted = {"adapter": t} if mixin else {"callbacks": [LoopAdapterCallback(t)]}
    made = (Composed if mixin else Plain)(
        model,
        args=args,
        train_dataset=data,
        eval_dataset=data,
        optimizers=(run.optimizer(model.parameters()), None),
        **{**adapted, **options},
    )
    made.run = run
    made.accelerator.scaler = run.scaler()  # Accelerate creates one on a GPU only
    return t, made


def train(run, folder=None, resume=None, *, mixin, **options):
    """Train a run, and return the adapter."""
    changes = {"save_strategy": "steps", "save_steps": 1} if folder and not resume else {}
    with tempfile.TemporaryDirectory() as scratch:
        where = folder if changes else scratch
        t, made = start(run, where, mixin=mixin, changes=changes, **options)
        path = folder / f"checkpoint-{resume}" if resume else None
        if path and not mixin:
            t.load_state_dict(torch.load(path / STATE_NAME, weights_only=True))
        made.train(path and str(path))
        if run.evaluates:
            probe = run.dicts(run.data(5))
            run.seen.append(torch.from_numpy(made.predict(probe).predictions))
    return t
