"""Predict on several processes."""

from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

from composable import Callback, Trainer
from composable._support.tree import children_of
from composable.distributed import Processes
from composable.distributed.starting import join_processes
from composable.metrics import accuracy
from tests.support.parallel_runs import Stream, cross_entropy, images, plain_net


@attrs.frozen(eq=False)
class Output:
    """What the model returns: tensors, numbers and text."""

    logits: Tensor
    others: dict[str, Any]


class Rich(nn.Module):
    """A model with an output of several types."""

    def __init__(self) -> None:
        super().__init__()
        self.net = plain_net()

    def forward(self, x: Tensor) -> Output:
        """Return logits, classes, flags, the number of examples, and a note."""
        logits = self.net(x)
        classes = (logits.argmax(1), logits.max(1).values.bfloat16(), logits > 0)
        return Output(logits, {"classes": classes, "count": len(x), "note": None})


class Changing(Rich):
    """A model whose output has another structure for short batches."""

    def forward(self, x: Tensor) -> Any:
        """Return a tensor, or a tuple."""
        return self.net(x) if len(x) > 4 else (self.net(x),)


class Count(Callback):
    """Counts batches."""

    batches = 0

    def predict_batch_end(self, state: Any, logger: Any) -> None:
        """Count."""
        self.batches += 1


def plain(tree: Any) -> Any:
    """Return a tree as lists and numbers, with the types."""
    if isinstance(tree, Tensor):
        return [str(tree.dtype), list(tree.shape), tree.flatten().tolist()]
    children = children_of(tree)
    if children is None:
        return tree
    inner = {str(name): plain(child) for name, child in children.items()}
    return [type(tree).__name__, inner]


def _divided(count: int) -> Any:
    processes = Processes.current()
    sampler = DistributedSampler(images(count), processes.size, processes.rank, shuffle=False)
    return DataLoader(images(count), batch_size=8, sampler=sampler)


LOADERS = {
    "map": lambda: DataLoader(images(44), batch_size=8),
    "stream": lambda: DataLoader(Stream(images(44)), batch_size=8),
    "one batch": lambda: DataLoader(images(3), batch_size=8),
}


class Logits(nn.Module):
    """A model with an output that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.net = plain_net()

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return self.net(x)


def write(parallel: Any, folder: str) -> int:
    """Predict to a folder, of which some parts are missing; return how many batches were here."""
    join_processes()
    torch.manual_seed(0)
    count = Count()
    options = {"seed": 0, "device": "cpu", "progress_bar": False}
    trainer = Trainer(Logits(), parallel=parallel, callbacks=[count], **options)  # type: ignore[arg-type]
    trainer.predict(LOADERS["map"](), to=folder)
    return count.batches


def predict(parallel: Any, model: type[Rich] = Rich) -> dict[str, Any]:
    """Predict on each loader; return the outputs, and the numbers of batches here."""
    join_processes()
    torch.manual_seed(0)
    count = Count()
    trainer = Trainer(
        model(),
        loss_fn=lambda output, targets: cross_entropy(output.logits, targets),
        metrics={"accuracy": lambda output, targets: accuracy(output.logits, targets)},
        seed=0,
        device="cpu",
        progress_bar=False,
        callbacks=[count],
        parallel=parallel,
    )
    found = {}
    for name, loader in LOADERS.items():
        count.batches = 0
        outputs = [plain(one) for one in trainer.predict(loader())]
        found[name] = {"outputs": outputs, "batches": count.batches}
        found[name]["each"] = [plain(one) for one in trainer.predict_each(loader())]
        next(trainer.predict_each(loader()))  # and is left
    whole = DataLoader(images(44), batch_size=8)
    several = Processes.current().several
    results = trainer.eval(_divided(44) if several else whole)
    return {**found, "results": results["eval"]}
