"""Low-precision group normalization."""

from functools import partial

import torch
from torch import nn

import composable.functional as F
from composable.algorithms import LowPrecisionGroupNorm
from tests.support.arguments import model_of
from tests.support.cases import SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.meaning import surgery
from tests.support.runs import LANGUAGE

CASE = Case(
    functions=[
        FunctionCase(
            F.low_precision_groupnorm,
            arguments=model_of(partial(nn.GroupNorm, 1, 3)),
            sought="GroupNorm",
        )
    ],
    algorithm=AlgorithmCase(
        LowPrecisionGroupNorm,
        {"precision": [torch.bfloat16]},
        meaning=surgery(F.low_precision_groupnorm),
        neutral=LowPrecisionGroupNorm(),  # without autocast
        cannot={LANGUAGE: "it has no group norm"},
    ),
    overview=Overview(
        group=SURGERY,
        summary="runs group norms in the dtype of autocast",
        changes="group norms: in the dtype of autocast",
        cost="not measured",
        evidence="practice",
        use_for="autocast on a GPU",
    ),
)
