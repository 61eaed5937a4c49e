"""The task that all trainers train, and what happens to a run."""

import json
import os
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH_SIZE, EXAMPLES, CLASSES, SIDE = 3, 8, 40, 4, 8
STEPS = EPOCHS * EXAMPLES // BATCH_SIZE
LR = 0.01
IGNORED = -100
SEED = 17


@attrs.frozen
class Job:
    """A run of a trainer in a process of its own.

    Args:
        folder: Where the trainer keeps its checkpoints, and this class its records.
        kill_after: Kill the process in the forward pass after this number of steps.
        cut_after: After this number of steps, end the process within a file of the next checkpoint.
        cut_at: The share of the largest file that is written until then.
        microbatches: The number of parts of a batch, whose gradients are accumulated.
        average: Evaluate an exponential moving average of the weights.
        algorithms: Train a model of images with these algorithms, by their names, in this order.
    """

    folder: Path
    kill_after: int | None = None
    cut_after: int | None = None
    cut_at: float = 0.5
    microbatches: int = 1
    average: bool = False
    algorithms: Sequence[str] = ()

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.folder / "checkpoints"

    @property
    def microbatch_size(self) -> int:
        """The number of examples of a part of a batch."""
        return BATCH_SIZE // self.microbatches

    @property
    def shuffles(self) -> bool:
        """Whether order and dropout are random: not where parts of batches are compared."""
        return self.microbatches == 1 and self.folder.name != "undivided"

    def model(self) -> nn.Module:
        """Build the model."""
        torch.manual_seed(SEED)
        if self.algorithms:
            return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, CLASSES))
        return Tagger(self, dropout=0.1 if self.shuffles else 0.0)

    def loader(self, batch_size: int = BATCH_SIZE, shuffle: bool = True) -> "DataLoader[Any]":
        """Build the loader of the training data."""
        examples = images() if self.algorithms else data()
        return DataLoader(examples, batch_size=batch_size, shuffle=shuffle)

    def apply(self, library: Mapping[str, Callable[[], Any]]) -> list[Any]:
        """Build the algorithms, for a trainer that has some."""
        (self.folder / "applied").touch()
        return [library[name]() for name in self.algorithms]

    def record(self, step: int, loss: Any) -> None:
        """Record the loss of a step, counted from 1 over all processes."""
        with (self.folder / "losses.jsonl").open("a") as file:
            file.write(json.dumps([step, float(loss)]) + "\n")

    def finish(
        self, weights: Mapping[str, Tensor], reported: float | None = None, saved: Any = None
    ) -> None:
        """Record the weights at the end.

        Args:
            weights: The weights of the model.
            reported: The loss of an evaluation, as the trainer reports it.
            saved: The weights in its last checkpoint.
        """
        save_file({name: one.clone() for name, one in weights.items()}, self.folder / "end")
        if saved is not None:
            model = self.model()
            model.load_state_dict(saved)
            found = {"reported": reported, "of_saved": evaluate(model)}
            (self.folder / "results.json").write_text(json.dumps(found))

    # --- what the questions read ---

    def losses(self) -> list[tuple[int, float]]:
        """Return what was recorded."""
        file = self.folder / "losses.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def weights(self) -> dict[str, Tensor]:
        """Return the weights at the end."""
        return load_file(self.folder / "end")

    def results(self) -> dict[str, float]:
        """Return the results of the evaluation."""
        found: dict[str, float] = json.loads((self.folder / "results.json").read_text())
        return found


class Tagger(nn.Module):
    """Predicts a class for each position; it ends the process where the job says."""

    def __init__(self, job: Job, dropout: float) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 4096), nn.Linear(4096, CLASSES)
        self.dropout = nn.Dropout(dropout)
        self._job, self._calls = job, 0

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits `[batch, positions, classes]`."""
        if self.training:
            if self._calls == self._job.kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
            if self._calls == self._job.cut_after:
                limit_files(self._job)
            self._calls += 1
        logits: Tensor = self.last(self.dropout(self.first(inputs).relu()))
        return logits


def limit_files(job: Job) -> None:
    """Let the system end the process when a file has a share of the size of the largest one."""
    largest = max(file.stat().st_size for file in job.folder.rglob("*") if file.is_file())
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    limit = int(largest * job.cut_at)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


def data() -> TensorDataset:
    """Make examples of six positions, of which the later examples have ever fewer labels."""
    draw = torch.Generator().manual_seed(SEED)
    inputs = torch.randn(EXAMPLES, 6, 8, generator=draw)
    labels = inputs[..., :CLASSES].argmax(2)
    labels[:, 1:][
        torch.rand(EXAMPLES, 5, generator=draw) > torch.linspace(1, 0, EXAMPLES)[:, None]
    ] = IGNORED
    return TensorDataset(inputs, labels)


def images() -> TensorDataset:
    """Make images of one channel."""
    draw = torch.Generator().manual_seed(SEED)
    inputs = torch.randn(EXAMPLES, 1, SIDE, SIDE, generator=draw)
    return TensorDataset(inputs, inputs.flatten(1)[:, :CLASSES].argmax(1))


def loss_fn(logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
    """Compute the mean over the positions with a label, or over images."""
    if logits.ndim == 2:
        return cross_entropy(logits, labels)
    return cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, **options)


@torch.no_grad()
def evaluate(model: nn.Module) -> float:
    """Compute the loss of the data in evaluation mode, by hand."""
    inputs, labels = data().tensors
    return loss_fn(model.eval()(inputs), labels).item()
