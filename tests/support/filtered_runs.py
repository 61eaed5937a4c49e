"""Runs whose batches are filtered by a proxy: for several processes."""

import os
from typing import Any

from composable.algorithms import ProxyFilter
from tests.support.data import shuffling_loader
from tests.support.models import linear, mlp, weights
from tests.support.parallel_runs import digest
from tests.support.runs import make_trainer, sgd


def filtered(options: dict[str, Any], count: int = 22, own_proxies: str = "") -> dict[str, Any]:
    """Train with a filter, and return what the run leaves.

    Args:
        options: Arguments of the Trainer.
        count: The number of examples.
        own_proxies: Whether each process builds another proxy, if not empty.
    """
    rank = int(os.environ.get("RANK", 0)) if own_proxies else 0
    trainer = make_trainer(
        mlp(),
        shuffling_loader(count, 6),
        algorithms=ProxyFilter(linear(1 + rank), sgd, interval=2),
        device="cpu",
        **options,
    )
    state = trainer.fit()
    return {
        "weights": {name: one.tolist() for name, one in weights(state.model).items()},
        "proxy": digest(dict(state.memory["ProxyFilter"]["weights"])),
    }
