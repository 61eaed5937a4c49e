"""Runs whose batches are filtered by a proxy: for several processes."""

import os
from functools import partial
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from composable import Trainer
from composable.algorithms import ProxyFilter
from tests.support.data import shuffling_loader
from tests.support.models import linear, mlp, weights
from tests.support.parallel_runs import digest

_SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def filtered(options: dict[str, Any], count: int = 22, own_proxies: str = "") -> dict[str, Any]:
    """Train with a filter, and return what the run leaves.

    Args:
        options: Arguments of the Trainer.
        count: The number of examples.
        own_proxies: Whether each process builds another proxy, if not empty.
    """
    rank = int(os.environ.get("RANK", 0)) if own_proxies else 0
    trainer = Trainer(
        mlp(),
        loss_fn=cross_entropy,
        train_dataloader=shuffling_loader(count, 6),
        optimizers=_SGD,
        algorithms=ProxyFilter(linear(1 + rank), _SGD, interval=2),
        max_duration="2ep",
        seed=17,
        device="cpu",
        progress_bar=False,
        **options,
    )
    state = trainer.fit()
    return {
        "weights": {name: one.tolist() for name, one in weights(state.model).items()},
        "proxy": digest(dict(state.memory["ProxyFilter"]["weights"])),
    }
