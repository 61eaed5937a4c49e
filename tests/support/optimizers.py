"""Optimizers of the library and of packages, and steps with given gradients."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from pytorch_optimizer import SOAP
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, AdamW, Optimizer

from composable import algorithms as A
from composable.functional import polar_express_coefficients
from composable.optim import (
    AdamWScheduleFree,
    MultiOptimizer,
    Muon,
    RowAdagrad,
    by_role,
    cosine,
    linear,
    per_group,
    per_option,
    with_cautious_weight_decay,
    with_ema_nesterov,
    with_lookahead,
    with_momentum_warmup,
)
from composable.optim import SGDScheduleFree as ScheduleFree
from tests.support.models import seeded

SHAPES: Sequence[tuple[int, ...]] = [(3, 4), (4,), (), (2, 1, 3)]
Build = Callable[[Any], Optimizer]


def parameters(
    dtype: torch.dtype = torch.float64, shapes: Sequence[tuple[int, ...]] = SHAPES
) -> list[nn.Parameter]:
    """Build parameters, the same at each call."""
    made: list[nn.Parameter] = seeded(
        lambda: [nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
    )
    return made


def stepped(
    optimizer: Optimizer,
    params: Iterable[nn.Parameter],
    steps: int = 6,
    between: Callable[[], Any] = lambda: None,
    missing: tuple[int, int] | None = (2, 1),
) -> list[Tensor]:
    """Step with the same gradients, one of which is missing in one step, and changing rates."""
    generator, params = torch.Generator().manual_seed(1), list(params)
    for step in range(steps):
        for i, p in enumerate(params):
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
            if (step, i) == missing:
                p.grad = None
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        optimizer.step()
        between()
    return [p.detach().clone() for p in params]


# --- wrappers ---

WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "nesterov": partial(with_ema_nesterov, decay=0.5),
    "decay": with_cautious_weight_decay,
    "warmup": partial(with_momentum_warmup, start=0.5, num_steps=4),
    "lookahead": partial(with_lookahead, interval=2),
}
INNER: dict[str, Build] = {
    "sgd": partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
    "foreach": partial(AdamW, lr=0.02, weight_decay=0.5, foreach=True),
    "fused": partial(AdamW, lr=0.02, weight_decay=0.5, fused=True),
    "muon": partial(Muon, lr=0.05, adamw_lr=0.01),
}


def wrapped(wrapper: str, inner: str, params: Any) -> Optimizer:
    """Build an optimizer with one wrapper, or with all of them."""
    optimizer = INNER[inner](params)
    for one in WRAPPERS.values() if wrapper == "all" else [WRAPPERS[wrapper]]:
        assert one(optimizer) is optimizer
    return optimizer


def several(params: Any, wrappers: Iterable[Callable[[Any], Any]] = ()) -> MultiOptimizer:
    """Build one optimizer of two, of which the first has wrappers."""
    first, *others = params
    optimizer = INNER["foreach"]([first])
    for one in wrappers:
        one(optimizer)
    return MultiOptimizer([optimizer, SGD(others, lr=0.1, momentum=0.9)])


def several_in_wrappers(params: Any) -> Optimizer:
    """Build one optimizer of two, with all wrappers around both."""
    optimizer: Optimizer = several(params)
    for one in WRAPPERS.values():
        one(optimizer)
    return optimizer


# --- runs ---

OPTIONS_OF_MUON: dict[str, Any] = {
    "equalize_rows": True,
    "slow_momentum": 0.98,
    "neuron_beta2": 0.95,
    "update_floor": 0.35,
    "soap_beta2": 0.9,
    "ns_coefficients": polar_express_coefficients(),
}
BY_ROLE = by_role(
    {
        "matrices": partial(Muon, lr=0.02),
        "embeddings": {"lr": 0.1, "betas": (0.8, 0.9)},
        "norms_and_biases": {"weight_decay": 0.0},
        "tables": partial(Adagrad, lr=0.1),
    },
    default=partial(AdamW, lr=0.01),
)
ROWS = by_role(
    {"tables": partial(RowAdagrad, lr=0.1, weight_decay=0.1)}, default=partial(SGD, lr=0.1)
)
RATE_AND_DECAY = per_option({"lr": cosine(0.1, warmup="2ba"), "weight_decay": linear(1.0, 0.25)})
BATCH = [A.SAM(interval=2), A.GradientClipping("norm", clipping_threshold=0.5)]
FAST = {
    "muon": INNER["muon"],
    "muon with all options": partial(Muon, lr=0.05, adamw_lr=0.01, **OPTIONS_OF_MUON),
    "soap": partial(SOAP, lr=3e-3, precondition_frequency=2),
}

RUNS: dict[str, dict[str, Any]] = {
    "muon": {
        "optimizers": FAST["muon"],
        "schedulers": [cosine(warmup="2ba"), per_group({"others": cosine()})],
        "algorithms": [
            *BATCH,
            A.EMA(half_life="2ba"),
            A.LayerFreezing(freeze_start=0.0, freeze_level=0.5),
        ],
    },
    "muon with all options": {
        "optimizers": FAST["muon with all options"],
        "schedulers": per_group({"matrices": per_option({"lr": cosine(), "slow_share": cosine()})}),
    },
    "soap": {"optimizers": FAST["soap"], "schedulers": cosine()},
    "soap of matrices": {
        "optimizers": by_role({"matrices": FAST["soap"]}, default=partial(AdamW, lr=3e-3)),
        "schedulers": cosine(),
    },
    "schedule-free sgd": {
        "optimizers": partial(ScheduleFree, lr=0.5, warmup_steps=2),
        "algorithms": BATCH,
    },
    "schedule-free adamw": {
        "optimizers": partial(AdamWScheduleFree, lr=0.05, warmup_steps=2),
        "algorithms": BATCH,
    },
    **{
        f"wrapped {inner}": {
            "optimizers": partial(wrapped, "all", inner),
            "schedulers": cosine(warmup="2ba"),
        }
        for inner in INNER
    },
    "several with wrappers": {"optimizers": partial(several, wrappers=WRAPPERS.values())},
    "several in wrappers": {"optimizers": several_in_wrappers},
    "two scheduled options, decay of weights alone": {
        "optimizers": partial(AdamW, lr=0.1, weight_decay=0.5),
        "schedulers": RATE_AND_DECAY,
        "decay_norms_and_biases": False,
    },
    "roles": {
        "optimizers": BY_ROLE,
        "algorithms": [A.NGramEmbeddings(rows=8)],
        "schedulers": [cosine(warmup="1ba"), per_group({"tables": cosine()})],
    },
    "sparse table": {
        "optimizers": ROWS,
        "algorithms": [A.NGramEmbeddings(rows=64, sparse=True)],
    },
}
"""Options of the Trainer that test an optimizer with much beside it."""
