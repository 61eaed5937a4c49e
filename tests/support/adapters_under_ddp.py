"""Trainings in external loops on two processes: functions that those processes import."""

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from composable.algorithms import BlurPool
from composable.integrations import LoopAdapter, adapt_loop
from tests.integrations.loops import dense_net
from tests.integrations.table import OPTIONS, SETS, SGD, dataset, net, start

SIZE, BATCH, COUNT = 2, 4, 16
"""The processes, the examples of a batch of one process, and those of the data."""

INTERLEAVED = ("own loop", "Lightning, mixin", "Lightning, callback")
"""The loops whose process `r` has the examples `r`, `r + 2`, ...; others divide by batches."""


def options(name: str) -> dict[str, Any]:
    """Return the options of an algorithm, for two epochs of two steps."""
    return {**OPTIONS.get(name, {}), "max_duration": "4ba"}


def images(name: str) -> TensorDataset:
    """Return the data."""
    return TensorDataset(*dataset(name, COUNT))


def global_batches(loop: str, name: str) -> list[Any]:
    """Return the batches of all processes together, of which each has one shard."""
    order = torch.arange(COUNT)
    if loop in INTERLEAVED:
        order = order.view(-1, BATCH, SIZE).transpose(1, 2).flatten()
    return [images(name)[part] for part in order.split(SIZE * BATCH)]


# --- loops ---


def divided(name: str) -> DataLoader[Any]:
    """Build a loader of this process's part of the data."""
    data = images(name)
    own: Any = DistributedSampler(data, SIZE, int(os.environ["RANK"]), shuffle=False)
    return DataLoader(data, BATCH, sampler=own)


def own_loop(name: str, algorithms: Any, *, accumulate: int = 1) -> LoopAdapter:
    """Train with `DistributedDataParallel`."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    model = net(name)
    optimizer = SGD(model.parameters())
    t = start(algorithms, model, optimizer=optimizer, **options(name))
    wrapped = DistributedDataParallel(t.model, find_unused_parameters=True)
    loader = divided(name)
    for _ in range(2):
        for i, (inputs, _) in enumerate(t.epoch(loader, accumulate_batches=accumulate), 1):
            wrapped.require_backward_grad_sync = i % accumulate == 0
            (t.loss(wrapped(inputs)) / accumulate).backward()
            if i % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
    return t


def accelerate(name: str, algorithms: Any) -> LoopAdapter:
    """Train with `Accelerator`."""
    from accelerate import Accelerator, DistributedDataParallelKwargs

    unused = DistributedDataParallelKwargs(find_unused_parameters=True)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[unused])
    model = net(name)
    raw = SGD(model.parameters())
    t = start(algorithms, model, optimizer=raw, **options(name))
    loader = DataLoader(images(name), BATCH)
    model, optimizer, loader = accelerator.prepare(t.model, raw, loader)
    for _ in range(2):
        for inputs, _ in t.epoch(loader):
            with accelerator.accumulate(model):
                accelerator.backward(t.loss(model(inputs)))
                optimizer.step()
                optimizer.zero_grad()
    return t


def lightning(name: str, algorithms: Any, *, mixin: bool = True) -> LoopAdapter:
    """Train with Lightning's Trainer."""
    import lightning.pytorch as L

    from composable.integrations.lightning import LoopAdapterCallback
    from tests.integrations.test_lightning import Composed, Plain

    t = start(algorithms, net(name), **options(name))
    trainer = L.Trainer(
        accelerator="cpu",
        devices=SIZE,
        strategy="ddp_find_unused_parameters_true",
        max_epochs=2,
        callbacks=[] if mixin else [LoopAdapterCallback(t)],
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Composed(t) if mixin else Plain(t.model), divided(name))
    return t


class Examples(Dataset[Any]):
    """The data as dictionaries."""

    def __init__(self, name: str) -> None:
        self.data = images(name)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> dict[str, Any]:
        return dict(zip(("pixel_values", "labels"), self.data[i], strict=True))


def hugging_face(name: str, algorithms: Any, *, mixin: bool = True) -> LoopAdapter:
    """Train with Hugging Face's Trainer."""
    from composable.integrations.huggingface import LogitsModel, LoopAdapterCallback
    from tests.integrations.test_huggingface import KEYS, Classifier, Composed, Plain, arguments

    t = start(algorithms, LogitsModel(Classifier(net(name))), **{**options(name), **KEYS})
    model = t.model.model

    class Here(Composed if mixin else Plain):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(DataLoader(self.train_dataset, BATCH))

    with tempfile.TemporaryDirectory() as folder:
        Here(
            model,
            args=arguments(folder, ddp_find_unused_parameters=True),
            train_dataset=Examples(name),
            optimizers=(SGD(model.parameters()), None),
            **({"adapter": t} if mixin else {"callbacks": [LoopAdapterCallback(t)]}),
        ).train()
    return t


LOOPS: dict[str, Callable[..., LoopAdapter]] = {
    "own loop": own_loop,
    "Accelerate": accelerate,
    "Lightning, mixin": lightning,
    "HF, mixin": hugging_face,
}


def different_seeds() -> None:
    """Train with another seed on each process."""
    dist.init_process_group("gloo")
    model = dense_net()
    t = adapt_loop(
        [],
        model,
        SGD(model.parameters()),
        loss_fn=nn.functional.cross_entropy,
        seed=dist.get_rank(),
    )
    next(t.epoch(divided("")))


class Noise(Dataset[Any]):
    """Examples that are drawn when they are fetched."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.rand(2, 8, 8), 0


def noise() -> list[list[float]]:
    """Return the first batch of an epoch, and the dropout of its forward pass."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    model = dense_net()
    t = adapt_loop([], model, SGD(model.parameters()), loss_fn=nn.functional.cross_entropy, seed=17)
    inputs, _ = next(t.epoch(DataLoader(Noise(), BATCH)))
    return [inputs.flatten().tolist(), torch.rand(4).tolist()]


def wrapped_model() -> None:
    """Pass a wrapped model."""
    dist.init_process_group("gloo")
    adapt_loop([BlurPool(min_channels=0)], DistributedDataParallel(net("BlurPool")), seed=17)


# --- results ---


def train(loop: str, names: list[str], **changes: Any) -> dict[str, Any]:
    """Train with each of the algorithms, and return what each training leaves."""
    as_of_torchrun()
    return {name: outcome(LOOPS[loop](name, SETS[name], **changes)) for name in names}


def as_of_torchrun() -> None:
    """Set the other variables that `torchrun` sets, by which Lightning recognizes it."""
    warnings.simplefilter("ignore")
    os.environ.update(LOCAL_WORLD_SIZE=str(SIZE), GROUP_RANK="0", TORCHELASTIC_RUN_ID="test")


def outcome(t: LoopAdapter) -> dict[str, Any]:
    """Return the parameters after training, those of an evaluation, and the clock."""
    with t.evaluating() as model:
        evaluated = numbers(model.parameters())
    if t.weights.installed:
        t.state = t.weights.remove(t.state)
    trained = numbers(t.model.parameters())
    now = t.state.timestamp
    return {"trained": trained, "evaluated": evaluated, "clock": [now.batch, now.sample]}


def numbers(parameters: Iterator[nn.Parameter]) -> list[float]:
    """Return all values in a list: a process that has ended cannot share tensors."""
    return list(chain(*(one.detach().flatten().tolist() for one in parameters)))
