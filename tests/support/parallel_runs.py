"""Runs that several processes train together: functions that those processes import."""

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
    TensorDataset,
)

from composable import Callback, Trainer
from composable._support.dtensors import whole
from composable._support.tree import map_tensors
from composable.algorithms import GradientClipping, LabelSmoothing, NGramEmbeddings
from composable.callbacks import (
    CheckpointSaver,
    ExportForInference,
    ImageVisualizer,
    MemoryMonitor,
    Predictions,
    Profiler,
)
from composable.checkpoint import files
from composable.core.control import Control
from composable.distributed import DDP, Processes
from composable.distributed.signals import Preempted
from composable.distributed.starting import join_processes
from composable.loggers import InMemoryLogger
from composable.metrics import accuracy
from composable.optim import RowAdagrad, by_role
from composable.resume.manager import CheckpointManager
from composable.utils.reproducibility import seed_context
from tests.support.data import Stateful
from tests.support.models import CLASSES, SIDE, conv_net
from tests.support.runs import make_trainer

cross_entropy = nn.functional.cross_entropy


def images(count: int) -> TensorDataset:
    """Return images whose class can be learned."""
    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(CLASSES, (count,), generator=generator)
    noise = torch.rand(count, 2, SIDE, SIDE, generator=generator)
    return TensorDataset((noise + targets.view(-1, 1, 1, 1)) / (CLASSES + 1), targets)


class Noisy(Dataset[Any]):
    """A dataset that draws from the global generator for each example."""

    def __init__(self, inner: TensorDataset) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        image, target = self.inner[index]
        return image + 0.1 * torch.rand(()), target


class Broken(Noisy):
    """A dataset with an example that cannot be read."""

    def __getitem__(self, index: int) -> Any:
        if index == 30:
            raise ValueError("image 30 is damaged")
        return self.inner[index]


class Stream(IterableDataset[Any]):
    """A dataset without a length."""

    def __init__(self, inner: TensorDataset) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        return iter([self.inner[index] for index in range(len(self.inner))])


def loader(kind: str, count: int, batch_size: int) -> Any:
    """Build a loader: `map`, `noisy`, `workers`, `stream`, `list`, `divided` or `uneven`."""
    data, processes = images(count), Processes.current()
    if kind == "list":
        return list(DataLoader(data, batch_size=batch_size))
    if kind == "stateful":
        return DataLoader(Stateful(data), batch_size=batch_size)
    if kind == "shards":
        return DataLoader(Shardable(data), batch_size=batch_size)
    if kind == "stream":
        return DataLoader(Stream(data), batch_size=batch_size)
    if kind == "divided":
        own = DistributedSampler(data, processes.size, processes.rank, shuffle=False)
        return DataLoader(data, batch_size=batch_size // processes.size, sampler=own)
    if kind == "ignored":
        images_, targets = data.tensors
        targets = targets.masked_fill(torch.arange(count) % 3 == 0, -100)
        return DataLoader(TensorDataset(images_, targets), batch_size=batch_size)
    if kind == "breaks":
        return DataLoader(Broken(data), batch_size=batch_size)
    if kind == "uneven":  # rank 0 has a batch of two examples more than the others
        end = count if processes.is_main else count - 2
        return list(DataLoader(TensorDataset(*data[:end]), batch_size=batch_size))
    return DataLoader(
        Noisy(data) if kind in ("noisy", "workers") else data,
        batch_size=batch_size,
        shuffle=True,
        num_workers=2 if kind == "workers" else 0,
    )


def observers(folder: str) -> list[Callback]:
    """Build callbacks that write files into a folder."""
    return [
        ExportForInference(f"{folder}/model.pt2"),
        ImageVisualizer("2ba"),
        MemoryMonitor("1ba"),
        Predictions("1ba"),
        Profiler(f"{folder}/profile", active=2),
    ]


class WhatIsSaved(Callback):
    """Counts the checkpoints in a folder at each save, and at the end."""

    def __init__(self, folder: str) -> None:
        self.folder, self.found, self.at_end = Path(folder), [], 0

    def after_save(self, state: Any, logger: Any) -> None:
        """Count those that are complete."""
        self.found.append(len(files.find(self.folder)[0]))

    def fit_end(self, state: Any, logger: Any) -> None:
        """Count those that are complete."""
        self.at_end = len(files.find(self.folder)[0])


def fit_with_slow_writes(folder: str, **options: Any) -> tuple[list[int], int]:
    """Train while rank 0 writes slowly, and return how many checkpoints there are.

    Returns:
        Those at each save, and those at the end.
    """
    write = CheckpointManager.write

    def slowly(*args: Any) -> Path:
        time.sleep(0.3)
        return write(*args)

    watch = WhatIsSaved(folder)
    with mock.patch.object(CheckpointManager, "write", slowly):
        fit(callbacks=[watch], folder=folder, **options)
    return watch.found, watch.at_end


def fit_observed(folder: str, **options: Any) -> dict[str, Any]:
    """Train like `fit`, with callbacks that write files, and the default progress bar."""
    return fit(callbacks=observers(folder), progress_bar=True, **options)


class Shardable(Stateful):
    """A stream of which each part has a state of its own: part 1 of 2 is ahead of part 0."""

    def shard(self, num_shards: int, index: int) -> "Shardable":
        """Return a part."""
        part = Shardable(Subset(self.inner, range(len(self.inner))[index::num_shards]))
        part.ahead = 100 * index
        return part

    ahead = 0

    def state_dict(self) -> dict[str, int]:
        """Return the position."""
        return {"at": self.at + self.ahead}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Start the next iteration there."""
        self.begin = state["at"] - self.ahead


class StopAt(Callback):
    """Ends training, on one rank only."""

    def __init__(self, batch: int, rank: int) -> None:
        self.batch, self.rank = batch, rank

    def batch_end(self, state: Any, logger: Any) -> Control | None:
        """Request the end."""
        here = Processes.current().rank == self.rank
        return Control.STOP if here and state.timestamp.batch == self.batch else None


class FailAt(StopAt):
    """Fails, on one rank only."""

    def batch_end(self, state: Any, logger: Any) -> Control | None:
        """Raise an error."""
        if super().batch_end(state, logger):
            raise OSError("the disk is gone")
        return None


class SignalAt(StopAt):
    """Sends SIGTERM to its own process, on one rank only."""

    def batch_end(self, state: Any, logger: Any) -> Control | None:
        """Send the signal."""
        if super().batch_end(state, logger):
            os.kill(os.getpid(), signal.SIGTERM)
        return None


def nan_on_rank_1(outputs: Tensor, targets: Tensor) -> Tensor:
    """Compute a loss that is NaN on one rank."""
    return cross_entropy(outputs, targets) * (float("nan") if Processes.current().rank else 1.0)


_CLASS_WEIGHTS = torch.arange(1.0, CLASSES + 1)


def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    """Compute a loss that is a mean over the weights of classes."""
    return 2 * cross_entropy(outputs, targets, weight=_CLASS_WEIGHTS, ignore_index=1)


class RootInEvaluation(nn.Module):
    """A loss whose value for a batch does not follow from those of its parts, in evaluation."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the loss."""
        loss = weighted(outputs, targets)
        return loss if self.training else loss.sqrt()


def plain_net() -> nn.Module:
    """Build a model without dropout and batch norm."""
    return conv_net(one_by_one=True)


def broken_net() -> nn.Module:
    """Build a model whose last weight is not finite: it is in the part of the last process."""
    model = plain_net()
    with torch.no_grad():
        *_, last = model.parameters()
        last[-1] = float("nan")
    return model


def linear_net() -> nn.Module:
    """Build a model whose parameters are matrices."""
    torch.manual_seed(0)
    first, last = nn.Linear(2 * SIDE * SIDE, 8, bias=False), nn.Linear(8, CLASSES, bias=False)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), last)


def token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Compute the mean over the targets that are not ignored."""
    return cross_entropy(outputs, targets, ignore_index=-100)


def sizes_of(model: nn.Module) -> list[float]:
    """Return the sums of the absolute values of the parameters."""
    return [float(whole(one).detach().double().abs().sum()) for one in model.parameters()]


def digest(tree: Any) -> str:
    """Return a hash of all tensors of a tree."""
    found = hashlib.sha256()

    def add(tensor: Tensor) -> Tensor:
        found.update(repr(whole(tensor).double().flatten().tolist()).encode())
        return tensor

    map_tensors(add, _plain(tree))
    return found.hexdigest()[:16]


def _plain(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _plain(value) for key, value in sorted(tree.items())}
    return tree


def kill_later(seconds: float) -> None:
    """Kill this process by SIGKILL after some time."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()


_DIFFERENT = {
    "seed": {"seed": 18},
    "lr": {"optimizers": partial(torch.optim.AdamW, lr=2e-3)},
    "algorithms": {"algorithms": [LabelSmoothing(0.2)]},
    "savers": {"callbacks": [CheckpointSaver("unused")]},
}


def fit(
    *,
    kind: str = "map",
    count: int = 44,
    batch_size: int = 16,
    model: Callable[[], nn.Module] = conv_net,
    different: str = "",
    folder: str | None = None,
    kill: Mapping[int, float] = MappingProxyType({}),
    **changes: Any,
) -> dict[str, Any]:
    """Train, and return what a test compares: losses, hashes, results, counts."""
    processes = join_processes()
    log = InMemoryLogger()
    options: dict[str, Any] = {
        "train_dataloader": loader(kind, count, batch_size),
        "eval_dataloader": DataLoader(images(count), batch_size=7),
        "metrics": {"accuracy": accuracy},
        "loss_fn": cross_entropy,
        "optimizers": partial(torch.optim.AdamW, lr=3e-3),
        "max_duration": "2ep",
        "seed": 17,
        "device": "cpu",
        "progress_bar": False,
        "loggers": [log],
        "parallel": DDP(shards=4, exact=True),
        **changes,
    }
    if folder is not None:
        options |= {"save_folder": folder, "autoresume": True, "save_interval": "2ba"}
    built = model()
    if processes.rank:
        if different == "model":
            built = nn.Sequential(built, nn.Linear(CLASSES, CLASSES))
        options |= _DIFFERENT.get(different, {})
        if different == "dataset":  # the same examples in another order
            flipped = TensorDataset(*(one.flip(0) for one in images(count).tensors))
            options["train_dataloader"] = DataLoader(flipped, batch_size, shuffle=True)
    trainer = Trainer(built, **options)
    ended = "whole"
    if processes.rank in kill:
        kill_later(kill[processes.rank])
    try:
        state = trainer.fit()
    except Preempted:
        state, ended = trainer.state, "preempted"
    return {
        "ended": ended,
        "losses": log.series("loss/train") if processes.is_main else [],
        "weights": digest(dict(state.model.state_dict())),
        "size": sum(sizes_of(state.model)),
        "memory": digest([state.memory, state.averages]),
        "metrics": {name: dict(values) for name, values in state.metrics.items()},
        "batch": state.timestamp.batch,
        "sample": state.timestamp.sample,
        "loss": float(state.loss),  # type: ignore[arg-type]
    }


def fit_tables(parallel: Any, sparse: bool) -> list[float]:
    """Train a table of n-grams, and return its weights."""
    tokens = torch.arange(17 * 6).view(17, 6) % 7 % 4  # the last batch is that of one process
    trainer = make_trainer(
        tabled_net(),
        DataLoader(TensorDataset(tokens, tokens.roll(-1, 1)), batch_size=8),
        loss_fn=flat_loss,
        optimizers=by_role(
            {"tables": partial(RowAdagrad, lr=0.1, weight_decay=0.1)},
            default=partial(torch.optim.SGD, lr=0.1),
        ),
        algorithms=[NGramEmbeddings(rows=64, sparse=sparse), GradientClipping("norm", 0.5)],
        parallel=parallel,
    )
    model: Any = trainer.fit().model
    return model[0].ngrams.weight.flatten().tolist()  # type: ignore[no-any-return]


def tabled_net() -> nn.Module:
    """Return a model that predicts the next of four tokens."""
    with seed_context(0):
        return nn.Sequential(nn.Embedding(4, 8), nn.Linear(8, 4))


def flat_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Compute the mean over all tokens."""
    return cross_entropy(outputs.flatten(0, 1), targets.flatten())


class Mixed(nn.Linear):
    """A layer whose attribute `sparse` is not that of an embedding."""

    sparse = True


def mixed_net() -> nn.Module:
    """Build a model of such a layer."""
    with seed_context(0):
        return nn.Sequential(nn.Flatten(), Mixed(2 * SIDE * SIDE, CLASSES))
