"""Predictions, evaluations and monitored runs of several processes, which import this."""

from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC

from composable import Event, Timestamp
from composable._support.tree import children_of
from composable.distributed import FSDP2, Processes
from composable.distributed.starting import join_processes
from composable.loggers import CSVLogger, InMemoryLogger, TensorBoardLogger
from composable.metrics import accuracy
from tests.support import parallel_runs as runs
from tests.support.models import CLASSES
from tests.support.observers import MONITORS, Watch
from tests.support.parallel_runs import Stream, cross_entropy, images, plain_net
from tests.support.parallel_runs import loader as loader_of
from tests.support.runs import make_trainer

# --- predictions ---


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


def plain(tree: Any) -> Any:
    """Return a tree as lists and numbers, with the types."""
    if isinstance(tree, Tensor):
        return [str(tree.dtype), list(tree.shape), tree.flatten().tolist()]
    children = children_of(tree)
    if children is None:
        return tree
    inner = {str(name): plain(child) for name, child in children.items()}
    return [type(tree).__name__, inner]


LOADERS = {
    "map": lambda: DataLoader(images(44), batch_size=8),
    "stream": lambda: DataLoader(Stream(images(44)), batch_size=8),
    "one batch": lambda: DataLoader(images(3), batch_size=8),
}


def write(parallel: Any, folder: str) -> int:
    """Predict to a folder, of which some parts are missing; return how many batches were here."""
    ended = Watch(Event.PREDICT_BATCH_END)
    trainer = make_trainer(plain_net(), parallel=parallel, callbacks=[ended], device="cpu")
    trainer.predict(LOADERS["map"](), to=folder)
    return len(ended.seen)


def predict(parallel: Any, model: type[Rich] = Rich) -> dict[str, Any]:
    """Predict on each loader; return the outputs, and the numbers of batches here."""
    ended = Watch(Event.PREDICT_BATCH_END)
    trainer = make_trainer(
        model(),
        loss_fn=lambda output, targets: cross_entropy(output.logits, targets),
        metrics={"accuracy": lambda output, targets: accuracy(output.logits, targets)},
        device="cpu",
        callbacks=[ended],
        parallel=parallel,
    )
    found = {}
    for name, loader in LOADERS.items():
        ended.seen.clear()
        outputs = [plain(one) for one in trainer.predict(loader())]
        found[name] = {"outputs": outputs, "batches": len(ended.seen)}
        found[name]["each"] = [plain(one) for one in trainer.predict_each(loader())]
        next(trainer.predict_each(loader()))  # and is left
    several = Processes.current().several
    results = trainer.eval(loader_of("divided", 44, 16) if several else LOADERS["map"]())
    return {**found, "results": results["eval"]}


# --- metrics that are objects ---


class Examples(Metric):
    """Counts examples, over all processes."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("count", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Count."""
        self.count += len(targets)

    def compute(self) -> Tensor:
        """Return the count."""
        return self.count


class Seen:
    """A metric that adds its examples, and nothing over processes."""

    def __init__(self) -> None:
        self.count = 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Count."""
        self.count += len(targets)

    def compute(self) -> float:
        """Return the count."""
        return float(self.count)

    def reset(self) -> None:
        """Start again."""
        self.count = 0


def evaluate(parallel: Any, batch_size: int, plain: bool = False) -> dict[str, Any]:
    """Evaluate twice; return the results of the second, and how often a metric was updated."""
    examples = Examples()
    roc = MetricCollection({"auroc": MulticlassAUROC(CLASSES), "top": MulticlassAccuracy(CLASSES)})
    metrics: dict[str, Any] = {"examples": examples, "roc": roc, "accuracy": accuracy}
    if plain:
        metrics["seen"] = Seen()
    data = DataLoader(images(44), batch_size=batch_size)
    options = {"metrics": metrics, "parallel": parallel, "device": "cpu"}
    trainer = make_trainer(plain_net(), eval_dataloader=data, **options)
    trainer.eval()
    results = trainer.eval()["eval"]
    return {"results": results, "updates": examples._update_count}


# --- monitors ---

MEASURED = ("system/", "throughput/", "time/")


def fit_monitored(*, monitored: bool, **options: Any) -> dict[str, Any]:
    """Train, and return the hash of the weights and the last values that were logged."""
    log = InMemoryLogger()
    sharded = isinstance(options["parallel"], FSDP2)  # whose gradients are summed earlier
    chosen = [
        build for name, build in MONITORS.items() if not (sharded and name in ("noise", "samples"))
    ]
    callbacks = [build() for build in chosen] if monitored else []
    found = runs.fit(callbacks=callbacks, loggers=[log], model=runs.plain_net, **options)
    latest = {
        name: value.item() if isinstance(value, Tensor) else value
        for name, value in log.latest.items()
        if not name.startswith(MEASURED)
    }
    return {"weights": found["weights"], "latest": latest}


def log_rank(folder: Path) -> None:
    """Log the rank for three batches, from each process."""
    rank = join_processes().rank
    for logger in (CSVLogger(folder / "metrics.csv"), TensorBoardLogger(folder / "events")):
        for batch in range(1, 4):
            logger.log_metrics({"rank": torch.tensor(rank)}, Timestamp(batch=batch))
        logger.state_dict()
        logger.close()
