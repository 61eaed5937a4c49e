"""Composer."""

import importlib.util
import sys
import types
import warnings
from importlib.machinery import ModuleSpec
from typing import Any, ClassVar

import torch
from torch import Tensor

from benchmarks.trainers.job import EPOCHS, IGNORED, LR, SEED, Job, data, loss_fn

warnings.simplefilter("ignore")


class _Absent(types.ModuleType):
    """Stands for a part of torchvision, which Composer imports and does not use here."""

    __path__: ClassVar[list[str]] = []
    __file__ = __file__

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


if importlib.util.find_spec("torchvision") is None:  # it needs a build for this very PyTorch
    _PARTS = ".datasets", ".models", ".models.resnet", ".ops", ".transforms", ".utils"
    for _name in ("", *_PARTS, ".transforms.functional"):
        sys.modules["torchvision" + _name] = _Absent("torchvision" + _name)

import composer  # noqa: E402
from composer.algorithms import EMA, LabelSmoothing, MixUp  # noqa: E402
from composer.core import Callback, DataSpec  # noqa: E402
from composer.models import ComposerModel  # noqa: E402
from torchmetrics import Metric  # noqa: E402


class Loss(Metric):
    """The loss of the data."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", default=torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", default=torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add a batch."""
        self.total += loss_fn(logits, labels, reduction="sum")
        self.count += (labels != IGNORED).sum()

    def compute(self) -> Tensor:
        """Return the mean."""
        return self.total / self.count


class Model(ComposerModel):
    """The model and its loss."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.model = job.model()
        self.metric = Loss()

    def forward(self, batch: Any) -> Any:
        """Return the logits."""
        return self.model(batch[0])

    def loss(self, outputs: Any, batch: Any) -> Any:
        """Compute the loss."""
        return loss_fn(outputs, batch[1])

    def get_metrics(self, is_train: bool) -> Any:
        """Return the metrics of an evaluation."""
        return {} if is_train else {"loss": self.metric}

    def update_metric(self, batch: Any, outputs: Any, metric: Any) -> None:
        """Add a batch."""
        metric.update(outputs, batch[1])


class Record(Callback):
    """Records the loss of each step."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def batch_end(self, state: Any, logger: Any) -> None:
        """Record the loss."""
        self.job.record(int(state.timestamp.batch), state.total_loss_dict["loss/train/total"])


def version() -> str:
    """Return the version."""
    return str(composer.__version__)


def train(job: Job, *, by_link: bool = False) -> None:
    """Train, from the last checkpoint if there is one.

    Args:
        job: The run.
        by_link: Load the checkpoint that the link of the last one names, in the place of
            `autoresume`, and overwrite later ones.
    """
    composer.utils.reproducibility.seed_all(SEED)
    model = Model(job)
    loader = job.loader(shuffle=job.shuffles)
    latest = job.checkpoints / "latest-rank0.pt"
    resumed: dict[str, Any] = {"autoresume": True}
    if by_link:
        resumed = {"load_path": str(latest) if latest.exists() else None, "save_overwrite": True}
    algorithms = job.apply({"MixUp": MixUp, "LabelSmoothing": LabelSmoothing})
    trainer = composer.Trainer(
        model=model,
        train_dataloader=DataSpec(
            loader, get_num_tokens_in_batch=lambda batch: int((batch[1] != IGNORED).sum())
        ),
        eval_dataloader=torch.utils.data.DataLoader(data(), batch_size=40) if job.average else None,
        optimizers=torch.optim.AdamW(model.parameters(), lr=LR),
        algorithms=[
            *algorithms,
            *([EMA(half_life="3ba", update_interval="1ba")] if job.average else []),
        ],
        callbacks=[Record(job)],
        device_train_microbatch_size=job.microbatch_size,
        accumulate_train_batch_on_tokens=True,
        max_duration=f"{EPOCHS}ep",
        run_name="run",
        save_folder=str(job.checkpoints),
        save_interval="1ba",
        **resumed,
        progress_bar=False,
        seed=SEED,
        device="cpu",
    )
    trainer.fit()
    saved = None
    if job.average:
        found = torch.load(latest, weights_only=False)["state"]["model"]
        saved = {
            name.removeprefix("model."): one
            for name, one in found.items()
            if name.startswith("model.")
        }
    metrics = trainer.state.eval_metrics.get("eval", {})
    reported = float(metrics["loss"].compute()) if metrics else None
    job.finish(model.model.state_dict(), reported, saved)
