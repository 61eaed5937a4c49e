"""Weight standardization."""

from functools import partial

import torch
from torch import nn

import composable.functional as F
from composable.algorithms import WeightStandardization
from tests.support.arguments import seeded
from tests.support.cases import SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_TENSOR, no_count
from tests.support.meaning import surgery
from tests.support.runs import LANGUAGE

CASE = Case(
    functions=[
        FunctionCase(
            F.weight_standardization,
            sought="Conv1d, Conv2d and Conv3d",
            lazy=partial(nn.LazyConv2d, 4, 3),
            renamed=r"[04]\.weight",
            added=r"[04]\.parametrizations\.weight\.original",
        ),
        FunctionCase(
            F.standardize_weight,
            arguments=(torch.randn(4, 3, 2, 2, generator=seeded()),),
            invalid={"weight": NO_TENSOR},
        ),
    ],
    algorithm=AlgorithmCase(
        WeightStandardization,
        meaning=surgery(F.weight_standardization),
        neutral="it has one scale; on standardized weights it is the identity",
        cannot={LANGUAGE: "it has no convolutions"},
    ),
    invalid={"n_last_layers_ignore": no_count(0)},
    overview=Overview(
        group=SURGERY,
        summary="standardizes the weights of convolutions",
        changes="weights of convolutions: standardized",
        cost="× 1.07",
        evidence="paper: [Qiao et al. 2019](https://arxiv.org/abs/1903.10520)",
        use_for="group norm, or batch norm with small batches",
    ),
)
