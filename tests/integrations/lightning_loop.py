"""Lightning's Trainer as a loop of tests/integrations/loops.py."""

import warnings

import lightning.pytorch as L
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision

from composable.integrations.lightning import LoopAdapterCallback, LoopAdapterMixin
from composable.utils.reproducibility import seed_step

QUIET = (
    "`isinstance.treespec, LeafSpec.` is",
    "The '.*_dataloader' does not have many",
    "You defined a `validation_step` but have no",
    "Be aware that when using `ckpt_path`",
    "Your `val_dataloader`'s sampler has shuffling enabled",
)


class Plain(L.LightningModule):
    """A module without the mixin."""

    def __init__(self, adapter, run, net=None):
        super().__init__()
        self.adapter, self.run, self.net = adapter, run, net or adapter.model

    def training_step(self, batch, batch_idx):
        seed_step(17, self.global_step)  # where a callback is alone, nothing seeds dropout
        return self.run.loss_fn(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.run.seen.append(self.net(self.run.probe()))

    test_step = validation_step

    def configure_optimizers(self):
        return self.run.optimizer(self.net.parameters())


class Composed(LoopAdapterMixin, Plain):
    """The same module with transforms."""

    training_step = LoopAdapterMixin.training_step


def trainer_of(run, *callbacks, **options):
    """Build a trainer for a run."""
    plugins = [MixedPrecision("16-mixed", "cpu", run.scaler())] if run.scaler() else []
    defaults = {
        "max_epochs": run.epochs,
        "accumulate_grad_batches": run.accumulate_batches,
        "precision": {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": None}[run.precision],
        "plugins": plugins,
        "devices": run.processes,
        "strategy": "auto" if run.processes == 1 else "ddp_find_unused_parameters_true",
        "enable_checkpointing": any(isinstance(one, ModelCheckpoint) for one in callbacks),
    }
    return L.Trainer(
        accelerator="cpu",
        callbacks=list(callbacks),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{**defaults, **options},
    )


def fit(trainer, module, path=None):
    """Train a module, from a checkpoint if there is one."""
    run = module.run
    loader = module.adapter.seeded(run.loader())
    with warnings.catch_warnings():
        for message in QUIET:
            warnings.filterwarnings("ignore", message)
        trainer.fit(module, loader, run.loader() if run.evaluates else None, ckpt_path=path)


def train(run, folder=None, resume=None, *, mixin, kind=None, callbacks=(), **options):
    """Train a run, and return the adapter."""
    t = run.adapter(run.net(), precision="fp32")  # the callback knows that of the trainer
    module = (kind or (Composed if mixin else Plain))(t, run)
    own = [] if mixin else [LoopAdapterCallback(t)]
    if folder is not None and resume is None:
        own.append(ModelCheckpoint(folder, save_top_k=-1, every_n_train_steps=1, filename="{step}"))
    path = None if resume is None else folder / f"step={resume}.ckpt"
    fit(trainer_of(run, *own, *callbacks, **options), module, path)
    return t
