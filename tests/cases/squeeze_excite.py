"""Squeeze-and-excitation."""

from functools import partial

from torch import nn

import composable.functional as F
from composable.algorithms import SqueezeExcite
from tests.support.cases import SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_LATENT
from tests.support.meaning import drawn_surgery
from tests.support.runs import LANGUAGE

CASE = Case(
    functions=[
        FunctionCase(
            F.squeeze_excite,
            needs={"latent_channels": 2, "min_channels": 4},
            sought="Conv1d, Conv2d and Conv3d with at least 4",
            lazy=partial(nn.LazyConv2d, 4, 3),
            added=r"[04]\.squeeze_excite\.(squeeze|excite)",
        )
    ],
    algorithm=AlgorithmCase(
        SqueezeExcite,
        {"latent_channels": [2, 0.5], "min_channels": [0]},
        meaning=drawn_surgery(F.squeeze_excite),
        neutral="its attention is a sigmoid, which is never 1",
        cannot={LANGUAGE: "it has no convolutions"},
    ),
    invalid={"latent_channels": NO_LATENT},
    overview=Overview(
        group=SURGERY,
        summary="recalibrates channels with squeeze-and-excitation attention",
        changes="convolutions: channels rescaled using globally pooled features",
        cost="× 1.06",
        evidence="wide: [Hu et al. 2018](https://arxiv.org/abs/1709.01507)",
        use_for="convolutional networks, where accuracy matters more than speed",
    ),
)
