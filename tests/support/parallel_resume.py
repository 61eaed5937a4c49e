"""Runs that resume, and what each of their processes reads."""

import warnings
from collections import Counter
from typing import Any

import torch
from torch import nn

from composable import Callback
from composable.checkpoint import reader
from tests.support import parallel_runs as runs
from tests.support.models import CLASSES, SIDE


def wide_net() -> nn.Module:
    """Build a model with a large matrix."""
    torch.manual_seed(0)
    first, last = nn.Linear(2 * SIDE * SIDE, 256), nn.Linear(256, CLASSES)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), last)


class AtStart(Callback):
    """Records what was loaded before training, and the bytes that this process had read."""

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts
        self.seen: dict[str, Any] = {}

    def fit_start(self, state: Any, logger: Any) -> None:
        """Record it."""
        names = {parameter: name for name, parameter in state.model.named_parameters()}
        (optimizer,) = state.optimizers
        states = {names[parameter]: values for parameter, values in optimizer.state.items()}
        self.seen = {
            "began": state.timestamp.batch,
            "loaded": runs.digest(
                [dict(state.model.state_dict()), states, state.memory, state.averages]
            ),
            "counts": dict(self.counts),
        }


def fit(**options: Any) -> dict[str, Any]:
    """Train like `parallel_runs.fit`, and return what was read, and the warnings, too."""
    counts: Counter[str] = Counter()
    _count_bytes(counts)
    at_start = AtStart(counts)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = runs.fit(callbacks=[at_start], **options)
    told = [str(one.message) for one in caught if "Checkpoint" in one.category.__name__]
    return {**result, **at_start.seen, "read": dict(counts), "told": told}


def _count_bytes(counts: Counter[str]) -> None:
    """Count the bytes that are read of files of tensors, with their hashes and without."""
    read = reader.Input.__call__

    def counting(file: Any, buffer: Any) -> int:
        count = read(file, buffer)
        if file.where.endswith(".safetensors"):
            counts["hashed" if file.hash is not None else "loaded"] += count
        return count

    reader.Input.__call__ = counting  # type: ignore[method-assign]  # in this process alone
