"""Factorization of layers."""

from functools import partial
from math import nan

import torch
from torch import nn

import composable.functional as F
from composable.algorithms import Factorize
from tests.support.cases import ONE_FAILS, SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_TENSOR, no_count
from tests.support.meaning import drawn_surgery

NO_RANK = (0, -1, 0.0, 1.0, 1.5, -0.5, nan, "3", None, True)

CASE = Case(
    functions=[
        FunctionCase(
            F.factorize,
            needs={"min_channels": 4},
            sought="Conv1d, Conv2d and Conv3d with at least 4",
            lazy=partial(nn.LazyConv2d, 4, 3),
            removed=r"4\.weight",
            renamed=r"4\.bias",
            added=r"4\.(reduce\.weight|expand\.(weight|bias))",
            invalid_sets=[
                (
                    {"factorize_convs": False, "factorize_linears": False},
                    "factorize_convs=False and factorize_linears=False leave nothing",
                )
            ],
        ),
        FunctionCase(F.factorize, {"init": "random"}, needs={"min_channels": 4}),
        FunctionCase(
            F.factorize_layer,
            needs={"rank": 2},
            arguments=lambda n: (nn.Linear(6, 4), torch.randn(n + 1, 6)),
            inputs=lambda n: torch.randn(n, 6),
            invalid={
                "layer": (3, None, nn.ReLU(), nn.Linear),
                "inputs": (*NO_TENSOR, torch.ones(2, 5)),
                "targets": (3, "x", [1.0], torch.ones(2, 5)),
                "rank": no_count(1),
            },
            invalid_sets=[
                ({"layer": nn.ReLU()}, "layer must be a Linear, Conv1d"),
                ({"layer": nn.Linear(6, 4, device="meta")}, "layer.weight must have values"),
                ({"rank": 5}, "rank=5 must be at most 4"),
                ({"inputs": torch.ones(5, 3)}, r"inputs of shape \(5, 3\) must be a batch of inp"),
                ({"inputs": torch.ones(5, 6) / 0}, "inputs must have values, and all must be fin"),
                ({"inputs": torch.ones(0, 6)}, "inputs must have values"),
                ({"targets": torch.ones(5, 6)}, r"targets has shape \(5, 6\) and must have \(5, 4"),
                ({"targets": torch.ones(5, 4) * nan}, "targets must have values, and all must be"),
            ],
        ),
    ],
    algorithm=AlgorithmCase(
        Factorize,
        {
            "min_channels": [0],
            "latent_channels": [1, 0.25],
            "min_features": [0],
            "latent_features": [1, 0.25],
            "init": ["svd", "randomized", "random"],
        },
        meaning=drawn_surgery(F.factorize),
        neutral="it replaces a layer only if a pair saves work, which can't hold every weight",
        invalid_sets=[
            ({"factorize_convs": False, "factorize_linears": False}, "leave nothing to replace")
        ],
        order_matters={
            "BlurPool SqueezeExcite WeightStandardization": (
                "only plain convolutions are factorized, and the other replaces them"
            ),
            "GatedLinearUnits": (
                "the gate needs an `nn.Linear`, and factorized layers are not `nn.Linear`",
                ONE_FAILS,
            ),
        },
    ),
    invalid={
        "latent_channels": NO_RANK,
        "min_features": no_count(0),
        "latent_features": NO_RANK,
        "init": ("exact", None, 1),
    },
    overview=Overview(
        group=SURGERY,
        summary="replaces wide layers with low-rank factorizations",
        changes="wide layers: low-rank pairs of layers",
        cost="× 0.64 of two linear layers of 1024",
        evidence="practice: [Zhang et al. 2015](https://arxiv.org/abs/1505.06798)",
        use_for="wide linear layers and convolutions, where a small loss of accuracy is acceptable",
    ),
)
