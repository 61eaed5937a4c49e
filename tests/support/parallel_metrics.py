"""Evaluate on several processes with metrics that are objects."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC

from composable import Trainer
from composable.distributed.starting import join_processes
from composable.metrics import accuracy
from tests.support.models import CLASSES
from tests.support.parallel_runs import cross_entropy, images, plain_net


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
    join_processes()
    examples = Examples()
    roc = MetricCollection({"auroc": MulticlassAUROC(CLASSES), "top": MulticlassAccuracy(CLASSES)})
    metrics: dict[str, Any] = {"examples": examples, "roc": roc, "accuracy": accuracy}
    if plain:
        metrics["seen"] = Seen()
    trainer = Trainer(
        plain_net(),
        eval_dataloader=DataLoader(images(44), batch_size=batch_size),
        loss_fn=cross_entropy,
        metrics=metrics,
        seed=0,
        device="cpu",
        progress_bar=False,
        parallel=parallel,
    )
    trainer.eval()
    results = trainer.eval()["eval"]
    return {"results": results, "updates": examples._update_count}
