"""The proxy filter."""

from collections.abc import Mapping
from functools import partial
from math import nan
from typing import Any

import torch
from torch import nn

import composable.functional as F
from composable import Event, State
from composable.algorithms import ProxyFilter
from composable.algorithms._scoring import example_losses
from tests.support.cases import BOTH_FAIL, COMPUTE, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_SHARE, NO_TENSOR
from tests.support.models import seeded
from tests.support.runs import LANGUAGE

MOST_CLASSES = 10


class Proxy(nn.Module):
    """A linear classifier of images of any size and dtype, also of a batch by name."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.score = nn.AdaptiveAvgPool2d(2), nn.Linear(4, MOST_CLASSES)

    def forward(self, inputs: Any) -> torch.Tensor:
        """Classify images."""
        images = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
        pooled = self.pool(images.mean(1, keepdim=True)).flatten(1)
        return self.score(pooled.to(self.score.weight.dtype))  # type: ignore[no-any-return]


def proxy() -> nn.Module:
    """Build a proxy."""
    return seeded(Proxy, 1)  # type: ignore[no-any-return]


def filtered(a: Any, s: State) -> Mapping[str, Any]:
    """Select the examples with the highest losses under the proxy."""
    losses = example_losses(s, a.proxy, dict(a.proxy.named_parameters()), a.name)
    chosen = F.select_highest(losses, keep=a.keep)
    memory = a(Event.AFTER_DATALOADER, s).memory  # tests/algorithms/test_proxy_filter.py
    return {"batch": (s.inputs[chosen], s.targets[chosen]), "memory": memory}


CASE = Case(
    functions=[FunctionCase(F.select_highest, invalid={"keep": NO_SHARE})],
    algorithm=AlgorithmCase(
        ProxyFilter,
        {
            "proxy": [proxy()],
            "optimizer": [
                partial(torch.optim.SGD, lr=0.1, momentum=0.9),
                partial(torch.optim.AdamW, lr=0.01),
            ],
            "keep": [0.5, 0.7],
            "interval": [1, 2],
        },
        meaning=filtered,
        invalid_sets=[
            ({"keep": 0}, r"keep=0 must be in \(0, 1\]"),
            (
                {"proxy": proxy().requires_grad_(False)},
                "proxy must have a parameter that requires gradients",
            ),
            (
                {"keep": 0.5, "rule": F.select_using_loss},
                "keep=0.5 and rule=.* must not both be given",
            ),
            (
                {"optimizer": torch.optim.SGD(proxy().parameters(), lr=0.1)},
                r"must be a function of the parameters of the proxy, such as functools\.partial",
            ),
        ],
        cannot={LANGUAGE: "the proxy of its case takes images"},
        order_matters={
            "AlternatingFlip AugMix ColOut CutOut PairedAugment ProgressiveResizing "
            "RandAugment RandomTranslation": (
                "examples are selected by their loss before or after they are modified"
            ),
            "SelectiveBackprop": ("both select examples by their losses", BOTH_FAIL),
        },
    ),
    invalid={
        "losses": NO_TENSOR,
        "keep": (0, -0.5, 1.5, nan, "half", True),
        "proxy": (None, 3, "net"),
        "optimizer": (None, 3, "sgd"),
        "rule": (3, "highest"),
        "schedule": (3, "cosine"),
    },
    overview=Overview(
        group=COMPUTE,
        summary="trains on the examples with a high loss under a small proxy of the model",
        changes="batch: the examples with a high loss under the proxy",
        cost="not measured",
        evidence="paper: [Jordan 2024](https://github.com/KellerJordan/cifar10-airbench)",
        use_for="clean labels, and models that cost many times what a useful proxy does",
    ),
)
