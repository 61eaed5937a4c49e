"""Activation checkpointing."""

import torch

import composable.functional as F
from composable.algorithms import ActivationCheckpointing
from tests.support.cases import (
    ONE_FAILS,
    OTHER_WEIGHTS,
    SURGERY,
    AlgorithmCase,
    Case,
    FunctionCase,
    Overview,
)
from tests.support.invalid import NO_FLAG
from tests.support.meaning import surgery

NO_BLOCKS = (3, [], [3], torch.nn.Linear(1, 1), torch.Tensor)

CASE = Case(
    functions=[
        FunctionCase(
            F.checkpoint_activations,
            sought="items of nn.ModuleList and nn.Sequential",
        )
    ],
    algorithm=AlgorithmCase(
        ActivationCheckpointing,
        {"every": [1, 2], "policy": [None, ["aten.mm.default"]]},
        meaning=surgery(F.checkpoint_activations),
        neutral=ActivationCheckpointing(),
        order_matters={
            "Factorize": (
                "a block that is a layer has another class, which the other does not find",
                {"vision": ONE_FAILS, "language": OTHER_WEIGHTS},
            )
        },
        no_effect="it saves memory, and computes the same",
    ),
    invalid={
        "blocks": NO_BLOCKS,
        "every": (0, -1, 1.5, None, True),
        "policy": (3, [], "mm", ["aten.nothing"], [3]),
        "offload": NO_FLAG,
    },
    overview=Overview(
        group=SURGERY,
        summary="computes activations again in the backward pass",
        changes="memory: activations of blocks are not saved",
        cost="× 1.29",
        evidence="wide: [Chen et al. 2016](https://arxiv.org/abs/1604.06174)",
        use_for="models or batches that don't fit into memory",
    ),
)
