"""Dirac initialization of convolutions."""

from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import composable.functional as F
from composable.algorithms import InitializeConvolutions
from tests.support.cases import ONE_FAILS, SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.meaning import surgery
from tests.support.runs import LANGUAGE

CASE = Case(
    functions=[
        FunctionCase(
            F.initialize_convolutions,
            arguments=lambda n: (nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()),),
            invalid_sets=[
                ({"model": nn.Sequential(conv)}, "weight of the convolution 0 is computed by")
                for conv in [
                    nn.LazyConv2d(3, 3),
                    nn.Conv2d(3, 3, 3, device="meta"),
                    weight_norm(nn.Conv2d(3, 3, 3)),
                ]
            ],
        ),
    ],
    algorithm=AlgorithmCase(
        InitializeConvolutions,
        meaning=surgery(F.initialize_convolutions),
        neutral="its filters are never the model's",
        cannot={LANGUAGE: "it has no convolutions"},
        order_matters={
            "Factorize": "one factorizes the filters of the other",
            "WeightStandardization": ("one standardizes the filters of the other", ONE_FAILS),
        },
    ),
    overview=Overview(
        group=SURGERY,
        summary="lets convolutions copy their inputs at the start of training",
        changes="the first filters of convolutions: start as copies of the inputs",
        cost="none per step",
        evidence="paper: [Zagoruyko and Komodakis 2017](https://arxiv.org/abs/1706.00388), "
        "[Jordan 2024](https://arxiv.org/abs/2404.00498)",
        use_for="convolutional networks without skip connections that are trained from scratch",
    ),
)
