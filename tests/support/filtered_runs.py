"""Runs whose batches are filtered, by a proxy or by recorded masks: for several processes."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from composable import Trainer
from composable.algorithms import ProxyFilter
from composable.data import ReplayMasks, load_masks
from tests.support.data import shuffling_loader
from tests.support.models import linear, mlp, weights
from tests.support.parallel_runs import digest

_SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def filtered(
    options: dict[str, Any],
    replayed: Path | None = None,
    count: int = 22,
    own_proxies: str = "",
) -> dict[str, Any]:
    """Train with a filter, and return what the run leaves.

    Args:
        options: Arguments of the Trainer.
        replayed: A checkpoint whose masks are replayed, in place of the proxy.
        count: The number of examples.
        own_proxies: Whether each process builds another proxy, if not empty.
    """
    rank = int(os.environ.get("RANK", 0)) if own_proxies else 0
    proxy = linear(1 + rank)
    algorithm = (
        ProxyFilter(proxy, _SGD, interval=2)
        if replayed is None
        else ReplayMasks(load_masks(replayed))
    )
    trainer = Trainer(
        mlp(),
        loss_fn=cross_entropy,
        train_dataloader=shuffling_loader(count, 6),
        optimizers=_SGD,
        algorithms=algorithm,
        max_duration="2ep",
        seed=17,
        device="cpu",
        progress_bar=False,
        **options,
    )
    state = trainer.fit()
    left: dict[str, Any] = {
        "weights": {name: one.tolist() for name, one in weights(state.model).items()}
    }
    if replayed is None:
        masks = load_masks(state)
        left |= {
            "proxy": digest(dict(state.memory["ProxyFilter"]["weights"])),
            "masks": [masks.steps, masks.sizes, masks.checksums, masks.bits.hex()],
        }
    return left
