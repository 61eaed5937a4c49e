"""Low-precision layer normalization."""

from functools import partial

import torch
from torch import nn

import composable.functional as F
from composable.algorithms import LowPrecisionLayerNorm
from tests.support.arguments import model_of, rows
from tests.support.cases import SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.meaning import surgery
from tests.support.runs import VISION

CASE = Case(
    functions=[
        FunctionCase(
            F.low_precision_layernorm,
            arguments=model_of(partial(nn.LayerNorm, 6)),
            inputs=rows(6),
            sought="LayerNorm",
        )
    ],
    algorithm=AlgorithmCase(
        LowPrecisionLayerNorm,
        {"precision": [torch.bfloat16]},
        meaning=surgery(F.low_precision_layernorm),
        neutral=LowPrecisionLayerNorm(),  # without autocast
        cannot={VISION: "it has no layer norm"},
    ),
    overview=Overview(
        group=SURGERY,
        summary="runs layer norms in the dtype of autocast",
        changes="layer norms: in the dtype of autocast",
        cost="not measured",
        evidence="practice",
        use_for="autocast on a GPU",
    ),
)
