"""One training in each of the loops that the adapter supports, to compare them."""

import warnings
from contextlib import ExitStack, nullcontext
from typing import Any

import attrs
import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from composable.integrations import LoopAdapter, adapt_loop
from composable.utils.reproducibility import seed_context
from tests.integrations.table import SGD, image_net, own_weights
from tests.support.data import examples
from tests.support.models import CLASSES, weights

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def dense_net() -> nn.Module:
    """Build a model without random numbers, batch statistics and slow convolutions."""
    with seed_context(0):
        return nn.Sequential(
            nn.Flatten(), nn.Linear(128, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, CLASSES)
        )


@attrs.frozen(eq=False)
class Run:
    """A training that every loop can do."""

    algorithms: Any = ()
    net: Any = image_net
    examples: int = 16
    batch_size: int = 4
    accumulate_batches: int = 1
    epochs: int = 2
    precision: str = "fp32"
    scale: float = 4.0
    """The first loss scale of fp16."""
    optimizer: Any = SGD
    loss_fn: Any = cross_entropy
    seen: list[Any] = attrs.field(factory=list)
    """What an own loop yields."""

    def loader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(*examples(self.examples, images=True)), self.batch_size)

    def adapter(self, model: nn.Module, optimizer: Any = None, **options: Any) -> LoopAdapter:
        precision = "fp32" if self.precision == "fp32" else f"amp_{self.precision}"
        length = -(-self.examples // (self.batch_size * self.accumulate_batches))
        defaults = {"loss_fn": self.loss_fn, "precision": precision, "epoch_length": length}
        return adapt_loop(
            list(self.algorithms),
            model,
            optimizer,
            max_duration=f"{self.epochs}ep",
            seed=17,
            **{**defaults, **options},
        )

    def autocast(self) -> Any:
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast("cpu", DTYPES[self.precision])

    def scaler(self) -> GradScaler | None:
        return GradScaler("cpu", init_scale=self.scale) if self.precision == "fp16" else None


def own_loop(run: Run) -> LoopAdapter:
    model = run.net()
    optimizer = run.optimizer(model.parameters())
    t = run.adapter(model, optimizer)
    scaler = run.scaler() or GradScaler("cpu", enabled=False)
    for _ in range(run.epochs):
        loader = run.loader()
        batches = t.epoch(loader, accumulate_batches=run.accumulate_batches)
        for i, (inputs, targets) in enumerate(batches, 1):
            run.seen.append((inputs, targets))
            with run.autocast():
                loss = t.loss(t.model(inputs)) / run.accumulate_batches
            scaler.scale(loss).backward()
            if i % run.accumulate_batches == 0 or i == len(loader):
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    return t


def accelerate(run: Run) -> LoopAdapter:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # it is shared by the process
    mixed = "bf16" if run.precision == "bf16" else "no"
    accelerator = Accelerator(
        cpu=True, mixed_precision=mixed, gradient_accumulation_steps=run.accumulate_batches
    )
    accelerator.scaler = run.scaler()  # Accelerate creates one on a GPU only
    model = run.net()
    optimizer = run.optimizer(model.parameters())
    t = run.adapter(model, optimizer)
    model, optimizer, loader = accelerator.prepare(t.model, optimizer, run.loader())
    for _ in range(run.epochs):
        for inputs, _ in t.epoch(loader, accumulate_batches=run.accumulate_batches):
            with accelerator.accumulate(model):
                with run.autocast() if run.precision == "fp16" else nullcontext():
                    loss = t.loss(model(inputs))
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    return t


def fabric(run: Run) -> LoopAdapter:
    from lightning.fabric import Fabric
    from lightning.fabric.plugins import MixedPrecision

    names = {"bf16": "bf16-mixed", "fp16": "16-mixed"}
    plugins = [MixedPrecision(names[run.precision], "cpu", run.scaler())] if run.scaler() else []
    precision = names.get(run.precision) if not plugins else None
    made = Fabric(accelerator="cpu", devices=1, precision=precision, plugins=plugins)
    model = run.net()
    raw = run.optimizer(model.parameters())
    t = run.adapter(model, raw)
    model, optimizer = made.setup(t.model, raw)
    loader = made.setup_dataloaders(run.loader())
    for _ in range(run.epochs):
        batches = t.epoch(loader, accumulate_batches=run.accumulate_batches)
        for i, (inputs, _) in enumerate(batches, 1):
            accumulating = i % run.accumulate_batches != 0 and i != len(loader)
            with made.no_backward_sync(model, enabled=accumulating):
                made.backward(t.loss(model(inputs)) / run.accumulate_batches)
            if not accumulating:
                optimizer.step()
                optimizer.zero_grad()
    return t


def _lightning(run: Run, *, mixin: bool) -> LoopAdapter:
    import lightning.pytorch as L
    from lightning.pytorch.plugins import MixedPrecision

    from composable.integrations.lightning import LoopAdapterCallback
    from tests.integrations.test_lightning import Composed, Plain

    t = run.adapter(run.net(), precision="fp32")  # the callback knows that of the trainer
    precision = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": None}[run.precision]
    plugins = [MixedPrecision("16-mixed", "cpu", run.scaler())] if run.scaler() else []
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=run.epochs,
        accumulate_grad_batches=run.accumulate_batches,
        precision=precision,
        plugins=plugins,
        callbacks=[] if mixin else [LoopAdapterCallback(t)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = (Composed if mixin else Plain)(t if mixin else t.model, run.optimizer)
    with _quiet():
        trainer.fit(module, run.loader())
    return t


def lightning_mixin(run: Run) -> LoopAdapter:
    return _lightning(run, mixin=True)


def lightning_callback(run: Run) -> LoopAdapter:
    return _lightning(run, mixin=False)


class Examples(torch.utils.data.Dataset):
    """The examples of a run as dictionaries."""

    def __init__(self, run: Run) -> None:
        self.inputs, self.labels = examples(run.examples, images=True)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"pixel_values": self.inputs[i], "labels": self.labels[i]}


def _hugging_face(run: Run, folder: Any, *, mixin: bool) -> LoopAdapter:
    from accelerate.state import AcceleratorState

    from composable.integrations.huggingface import LogitsModel, LoopAdapterCallback
    from tests.integrations.test_huggingface import KEYS, Classifier, Composed, Plain, arguments

    AcceleratorState._reset_state(reset_partial_state=True)  # it is shared by the process
    t = run.adapter(LogitsModel(Classifier(run.net()), loss_fn=run.loss_fn), **KEYS)

    class Here(Composed if mixin else Plain):  # type: ignore[misc]
        def get_train_dataloader(self):
            return DataLoader(self.train_dataset, batch_size=run.batch_size)

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            with run.autocast() if run.precision == "fp16" else nullcontext():
                return super().compute_loss(*args, **kwargs)

    options = {
        "gradient_accumulation_steps": run.accumulate_batches,
        "bf16": run.precision == "bf16",
    }
    args = arguments(folder, **options)
    args.num_train_epochs = run.epochs
    model = t.model.model
    here = Here(
        model,
        args=args,
        train_dataset=Examples(run),
        optimizers=(run.optimizer(model.parameters()), None),
        **({"adapter": t} if mixin else {"callbacks": [LoopAdapterCallback(t)]}),
    )
    here.accelerator.scaler = run.scaler()  # Accelerate creates one on a GPU only
    here.train()
    return t


def hugging_face_mixin(run: Run) -> LoopAdapter:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return _hugging_face(run, folder, mixin=True)


def hugging_face_callback(run: Run) -> LoopAdapter:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return _hugging_face(run, folder, mixin=False)


def _quiet() -> ExitStack:
    stack = ExitStack()
    stack.enter_context(warnings.catch_warnings())
    for message in (
        "`isinstance.treespec, LeafSpec.` is",
        "The '.*_dataloader' does not have many",
        "You defined a `validation_step` but have no",
    ):
        warnings.filterwarnings("ignore", message)
    return stack


LOOPS = {
    "own loop": own_loop,
    "Fabric": fabric,
    "Accelerate": accelerate,
    "Lightning, mixin": lightning_mixin,
    "HF, mixin": hugging_face_mixin,
    "Lightning, callback": lightning_callback,
    "HF, callback": hugging_face_callback,
}
FULL = [name for name in LOOPS if "callback" not in name]
"""The loops that call `start_batch` and `loss`."""


def trained(t: LoopAdapter) -> list[torch.Tensor]:
    """Return the weights, and those of an evaluation."""
    own = list(own_weights(t).values())
    with t.evaluating() as model:
        return [*own, *weights(model).values()]
