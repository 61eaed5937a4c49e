"""BlurPool."""

from functools import partial

import torch
from torch import nn

import composable.functional as F
from composable.algorithms import BlurPool
from tests.support.cases import SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_FLOAT_IMAGES, no_word
from tests.support.meaning import surgery
from tests.support.runs import LANGUAGE

NOTHING_TO_REPLACE = [
    (
        {"replace_convs": False, "replace_maxpools": False},
        "replace_convs=False and replace_maxpools=False leave nothing to replace",
    )
]

CASE = Case(
    functions=[
        FunctionCase(
            F.blurpool,
            needs={"min_channels": 4},
            sought="at least 4 input channels or MaxPool1d",
            lazy=partial(nn.LazyConv2d, 4, 3, stride=2),
            invalid_sets=NOTHING_TO_REPLACE,
        ),
        FunctionCase(F.blurpool, {"blur_first": False}),
        FunctionCase(
            F.blur,
            needs={"stride": 2},
            invalid={
                "inputs": NO_FLOAT_IMAGES,
                "stride": (0, -1, 2.5, "2", None, (2,), (0, 1)),
                "padding_mode": no_word(),
            },
            invalid_sets=[
                ({"inputs": torch.zeros(shape)}, r"shape \[batch, channels, ...\] with 1 to 3 spat")
                for shape in [(3, 4), (2, 3, 4, 4, 4, 4)]
            ],
        ),
    ],
    algorithm=AlgorithmCase(
        BlurPool,
        {"min_channels": [0], "blur_first": [True, False], "replace_maxpools": [True, False]},
        meaning=surgery(F.blurpool),
        neutral="its blur has one strength; it is the identity on what is the same everywhere",
        invalid_sets=NOTHING_TO_REPLACE,
        cannot={LANGUAGE: "it has no strided layers"},
    ),
    overview=Overview(
        group=SURGERY,
        summary="blurs before strided layers subsample",
        changes="strides and max-pools: a blur before subsampling",
        cost="× 1.65",
        evidence="paper: [Zhang 2019](https://arxiv.org/abs/1904.11486)",
        use_for="where a shift by a pixel should not change the prediction",
    ),
)
