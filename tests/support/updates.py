"""Runs of several updates, by the Trainer and by a plain loop."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from composable import Event, Key, Trainer, Update
from composable._support.dtensors import whole as whole_of
from composable.algorithms import EMA
from composable.loggers import InMemoryLogger
from composable.utils.reproducibility import seed_step
from tests.support.data import batches
from tests.support.models import seeded, weights
from tests.support.runs import adam, make_trainer, sgd

SEED = 17
lbfgs = partial(torch.optim.LBFGS, lr=0.3, max_iter=3)


class Lower(nn.Module):
    """A network that FSDP2 does not wrap by default: it is not an `nn.Sequential`."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 5), nn.BatchNorm1d(5) if norm else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.norm(self.linear(inputs)).tanh()  # type: ignore[no-any-return]


class Pair(nn.Module):
    """Two networks, the second of which reads the first."""

    def __init__(self, dropout: float = 0.2, norm: bool = True) -> None:
        super().__init__()
        self.lower = Lower(norm)
        self.upper = nn.Sequential(nn.Dropout(dropout), nn.Linear(5, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.upper(self.lower(inputs))  # type: ignore[no-any-return]


def pair(**options: Any) -> Pair:
    """Build a pair; every call returns the same weights."""
    return seeded(partial(Pair, **options))  # type: ignore[no-any-return]


def upper_loss(model: Any, batch: Any) -> dict[str, Tensor]:
    """Train the upper network to classify, with a term that is logged."""
    logits = model.upper(model.lower(batch[0]).detach())
    loss, size = cross_entropy(logits, batch[1]), logits.square().mean()
    return {"loss": loss + 0.1 * size, "size": size}


def lower_loss(model: Any, batch: Any) -> Tensor:
    """Train the lower network against the upper one, with noise."""
    return still_loss(model, (batch[0] + 0.1 * torch.randn_like(batch[0]), batch[1]))


def still_loss(model: Any, batch: Any) -> Tensor:
    """Train the lower network against the upper one, without noise."""
    hidden = model.lower(batch[0])
    return -cross_entropy(model.upper(hidden), batch[1]) + hidden.square().mean()


def whole_loss(model: Any, batch: Any) -> Tensor:
    """Train both."""
    return cross_entropy(model(batch[0]), batch[1])


def upper(**options: Any) -> Update:
    """Return an update of the upper network."""
    given = {"name": "upper", "loss": upper_loss, "parameters": "upper.*", "optimizer": sgd}
    return Update(**{"mean_over": "examples", **given, **options})


def lower(**options: Any) -> Update:
    """Return an update of the lower network."""
    given = {"name": "lower", "loss": lower_loss, "parameters": "lower.*", "optimizer": adam}
    return Update(**{"mean_over": "examples", **given, **options})


def whole(**options: Any) -> Update:
    """Return an update of both."""
    given = {"name": "whole", "loss": whole_loss, "optimizer": sgd}
    return Update(**{"mean_over": "examples", **given, **options})


def with_updates(updates: Sequence[Update], model: Any = None, **options: Any) -> Trainer:
    """Build a Trainer with updates."""
    model = pair() if model is None else model
    given = {"optimizers": None, "loss_fn": None, "updates": updates, "seed": SEED}
    return make_trainer(model, **{**given, **options})


def halves(batch: Any) -> list[tuple[Any, float]]:
    """Return the halves of a batch, each with its share."""
    count = len(batch[0])
    first = (count + 1) // 2
    parts = [tuple(one[:first] for one in batch), tuple(one[first:] for one in batch)]
    return [(part, len(part[0]) / count) for part in parts]


def plain_updates(
    updates: Sequence[Update], model: nn.Module, *, split: bool = False
) -> dict[str, Tensor]:
    """Train for two epochs by hand, with the keys of the library, and return the weights."""
    optimizers: dict[str, Any] = {}
    for one in updates:
        pattern = one.parameters.removesuffix("*")
        own = [p for name, p in model.named_parameters() if name.startswith(pattern)]
        optimizers[one.name] = one.optimizer(own)
    number = 0
    for _ in range(2):
        for batch in batches(12):
            for i, one in enumerate(updates):
                if number % one.every != one.every - 1:  # type: ignore[operator]
                    continue
                for repetition in range(one.times):
                    key = Key(SEED)
                    if i or repetition:
                        key = key.fold("update", one.name, repetition)
                    seeding = partial(seed_step, key, number)
                    step(one, optimizers[one.name], model, batch, split, seeding)
            number += 1
    return weights(model)


def step(
    update: Update,
    optimizer: Any,
    model: nn.Module,
    batch: Any,
    split: bool,
    seeding: Callable[[int], None],
) -> None:
    """Take one step of an update by hand."""

    def closure() -> Any:
        model.zero_grad()
        values = []
        for i, (part, share) in enumerate(halves(batch) if split else [(batch, 1.0)]):
            seeding(i)
            returned = update.loss(model, part)
            loss = returned["loss"] if isinstance(returned, dict) else returned
            values.append(loss * share if split else loss)
            values[-1].backward()
        return sum(value.detach() for value in values)

    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()


def fit_updates(strategy: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Train in this process of several, and return what a test compares."""
    log, norm = InMemoryLogger(), options.pop("norm", True)
    optimizer = options.pop("optimizer", sgd)
    given = {"train_dataloader": batches(20, 8), "loggers": log, "log_interval": "1ba"}
    updates = [
        upper(times=2, optimizer=optimizer),
        lower(loss=still_loss, every=2, optimizer=sgd, algorithms=EMA("2ba")),
    ]
    model = pair(dropout=0.0, norm=norm)
    trainer = with_updates(updates, model, **{**given, "parallel": strategy, **options})
    state = trainer.fit()

    def values(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        return {name: whole_of(one).tolist() for name, one in tensors.items()}

    return {
        "weights": values(state.model.state_dict()),
        "averages": values(state.averages["lower/EMA"]),
        "losses": {n: log.series(f"loss/train/{n}") for n in ("upper", "lower", "upper/size")},
        "reducers": len(getattr(trainer._run.engine, "_reducers", ())),
    }


def weights_at_fetches(strategy: Any) -> tuple[list[Any], list[Any]]:
    """Train in this process of several; return the weights at each fetch and each batch end."""
    model, fetched, ended = pair(dropout=0.0, norm=False), [], []

    class Rollouts:
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Any:
            for batch in batches(20, 8):
                fetched.append(model.lower.linear.weight.tolist())
                yield batch

    def end(event: Event, state: Any, logger: Any) -> None:
        if event is Event.BATCH_END:
            ended.append(model.lower.linear.weight.tolist())

    updates = [upper(times=2), lower(loss=still_loss, times=2)]
    given = {"max_duration": "1ep", "callbacks": end, "parallel": strategy}
    with_updates(updates, model, train_dataloader=Rollouts(), **given).fit()
    return fetched, ended


def rows_of_a_resumed_run(strategy: Any, folder: str) -> list[Any]:
    """Train in this process of several, stop between two rows, resume; return the logged names."""
    for resumes in (False, True):
        log = InMemoryLogger()
        options = {"log_interval": "3ba", "loggers": log, "parallel": strategy}
        saving = {"save_folder": folder, "save_interval": "1ba", "autoresume": resumes}
        updates = [upper(), lower(loss=still_loss, every=4, optimizer=sgd)]
        trainer = with_updates(updates, pair(norm=False), max_duration="6ba", **options, **saving)
        trainer.fit(duration=None if resumes else "5ba")
    return [sorted(name for name in values if "loss" in name) for _, values in log.records]
