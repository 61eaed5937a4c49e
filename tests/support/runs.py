"""Small runs: by the Trainer, and by a plain loop."""

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from composable import Event, Trainer
from composable._support.dtensors import whole
from tests.support.campaign import FULL
from tests.support.data import (
    batches,
    count_tokens,
    shuffled_text,
    shuffling_loader,
    text_batches,
)
from tests.support.models import conv_net, language_model, linear, weights
from tests.support.observers import Watch

DEVICE = os.environ.get("TEST_DEVICE", "cpu")
"""Where the runs of tests train: `TEST_DEVICE=cuda pytest FILE` on a GPU."""


sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
adam = partial(torch.optim.Adam, lr=0.01)


def make_trainer(model: nn.Module | None = None, loader: Any = None, **options: Any) -> Trainer:
    """Build a Trainer, of a linear model on three batches of four unless given others."""
    defaults: dict[str, Any] = {
        "train_dataloader": batches(12) if loader is None else loader,
        "loss_fn": cross_entropy,
        "optimizers": sgd,
        "max_duration": "2ep",
        "seed": 17,
        "device": DEVICE,
        "progress_bar": False,
        # A sixth of the time of all tests; property_tests/test_effects.py checks every algorithm.
        "check_effects": FULL,
    }
    return Trainer(linear() if model is None else model, **{**defaults, **options})


def training_weights(trainer: Trainer) -> dict[str, Tensor]:
    """Return the weights that a run trains, where it is evaluated with others."""
    with trainer._training():
        return weights(trainer.state.model)


def trained(
    model: nn.Module | None = None, loader: Any = None, **options: Any
) -> dict[str, Tensor]:
    """Return the weights that `make_trainer(...)` has trained."""
    trainer = make_trainer(model, loader, **options)
    trainer.fit()
    return training_weights(trainer)


def gradients_of(
    model: nn.Module, loader: Any, **options: Any
) -> list[tuple[dict[str, Tensor], Tensor]]:
    """Return the gradients and the loss of each batch, at constant weights."""
    watch = Watch(
        Event.AFTER_TRAIN_BATCH,
        read=lambda state: (
            {name: whole(one).clone() for name, one in state.current_gradients().items()},
            state.loss,
        ),
    )
    still = partial(torch.optim.SGD, lr=0.0)
    options = {"optimizers": still, "max_duration": "1ep", "check_effects": False, **options}
    make_trainer(model, loader, callbacks=watch, **options).fit()
    return watch.values


@attrs.frozen(eq=False, repr=False)
class Problem:
    """What is trained, and what the Trainer must know about it."""

    name: str
    model: Callable[..., nn.Module]
    batches: Callable[..., Any]
    shuffled: Callable[..., Any]
    options: Mapping[str, Any] = attrs.field(factory=dict)

    def trainer(
        self, model: nn.Module | None = None, loader: Any = None, **options: Any
    ) -> Trainer:
        """Build a Trainer with small defaults."""
        model = self.model() if model is None else model
        loader = self.batches() if loader is None else loader
        return make_trainer(model, loader, **{**self.options, **options})

    def __repr__(self) -> str:
        return self.name


VISION = Problem(
    "vision", conv_net, partial(batches, images=True), partial(shuffling_loader, images=True)
)
LANGUAGE = Problem(
    "language",
    language_model,
    text_batches,
    shuffled_text,
    options={
        "input_key": "input_ids",
        "target_key": "labels",
        "loss_mean_over": "tokens",
        "count_tokens": count_tokens,
    },
)
PROBLEMS = [VISION, LANGUAGE]


def plain_loop(
    model: nn.Module,
    loader: Iterable[Any] | Callable[[int, int], Iterable[Any]],
    optimizer: torch.optim.Optimizer,
    *,
    epochs: int = 2,
    before_epoch: Callable[[int], object] = lambda epoch: None,
    before_batch: Callable[[int], object] = lambda step: None,
    after_batch: Callable[[], object] = lambda: None,
    after_epoch: Callable[[], object] = lambda: None,
) -> dict[str, Tensor]:
    """Train as anyone would by hand, without this library, and return the weights.

    The loader may be a function of the epoch and its first step.
    """
    step = 0
    model.train()
    for epoch in range(epochs):
        before_epoch(epoch)
        for inputs, targets in loader(epoch, step) if callable(loader) else loader:
            before_batch(step)
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            after_batch()
            step += 1
        after_epoch()
    return weights(model)
