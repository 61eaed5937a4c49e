"""A small Trainer to compare, in a module that worker processes import."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import composable
from composable import Trainer
from composable.algorithms import MixUp
from composable.comparison import execution
from composable.comparison.arms import Arm
from composable.comparison.records import Trial
from composable.comparison.trial import Compared
from composable.metrics import accuracy
from composable.utils.reproducibility import seed_context
from tests.support.processes import forkserver

FEATURES, CLASSES = 4, 3
BATCHES = 6
ARMS = {
    "plain": Arm("plain", ()),
    "renamed": Arm("renamed", ()),
    "mixed": Arm("mixed", (MixUp(0.3),)),
    "mixed more": Arm("mixed more", (MixUp(0.4),)),
}


def fork_workers(patch: pytest.MonkeyPatch, *, after: int = 0) -> None:
    """Fork the workers of comparisons after some, which import everything as a user's do."""
    import loky  # an extra

    contexts = [None] * after
    start = loky.ProcessPoolExecutor

    def started(*args, **options):
        return start(*args, context=contexts.pop() if contexts else forkserver, **options)

    patch.setattr(loky, "ProcessPoolExecutor", started)


class InThread:
    """A worker in this process; all of them share one thread."""

    _executor = ThreadPoolExecutor(1)

    def __init__(self, folder, number, threads):
        self.submit = self._executor.submit

    def close(self):
        """Do nothing: a trial in this process ends by itself."""


def work_in_threads(patch: pytest.MonkeyPatch) -> None:
    """Run the trials of comparisons in this process."""
    patch.setattr(execution, "Worker", InThread)


def compare_in_threads(*arguments, **options):
    """Compare, with the trials in threads of this process."""
    with pytest.MonkeyPatch.context() as patch:
        work_in_threads(patch)
        return composable.compare(*arguments, **options)


def examples(count: int = 8 * BATCHES) -> TensorDataset:
    """Return examples that a linear model separates."""
    with seed_context(0):
        inputs = torch.randn(count, FEATURES)
        targets = (inputs @ torch.randn(FEATURES, CLASSES)).argmax(1)
    return TensorDataset(inputs, targets)


def build(algorithms, seed, lr=0.1, **options):
    """Build a Trainer of a linear model."""
    arguments = {
        "train_dataloader": DataLoader(examples(), batch_size=8, shuffle=True),
        "eval_dataloader": DataLoader(examples(), batch_size=16),
        "loss_fn": cross_entropy,
        "metrics": {"accuracy": accuracy},
        "optimizers": partial(torch.optim.SGD, lr=lr),
        "algorithms": algorithms,
        "seed": seed,
        "progress_bar": False,
    }
    return Trainer(nn.Linear(FEATURES, CLASSES), **{**arguments, **options})


def build_or_die(algorithms, seed, how=None, **options):
    """Build a Trainer, or end in another way."""
    if how == "exit":
        print("before the end")
        os._exit(7)
    if how == "exit on seed 2" and seed == 2:
        os._exit(7)
    if how == "raise":
        raise OSError("no such data")
    return build(algorithms, seed, **options)


def trial(seed=0, duration="2ep", arm="plain", **settings):
    """Return a trial to report."""
    return Trial(arm, settings, duration, seed, "reporting")


def compared(function, **options):
    """Return the arms to compare, with a function that builds a Trainer."""
    return Compared(**{"function": function, "arms": ARMS, **options})


def loop_of(function, value, **options):
    """Return one arm to compare, of a loop that gets a value."""
    arms = {"plain": Arm("plain", value, of_loop=True)}
    return Compared(function=function, arms=arms, name="run", metrics=("test/loss",), **options)
