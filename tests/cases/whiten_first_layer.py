"""Whitening by the first layer."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import composable.functional as F
from composable.algorithms import WhitenedFirstLayer
from tests.support.arguments import images
from tests.support.cases import ONE_FAILS, SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.data import examples
from tests.support.invalid import NO_FLOAT_IMAGES, NO_POSITIVE
from tests.support.runs import LANGUAGE


def sample() -> torch.Tensor:
    """Return images of the problem of vision."""
    return examples(10, images=True)[0]


CONSTANT = "the filters are constants"
NO_PATCHES = "there are no patches"

CASE = Case(
    functions=[
        FunctionCase(
            F.whiten_first_layer,
            arguments=lambda n: (nn.Sequential(nn.Conv2d(3, 24, 2), nn.ReLU()), images(6)),
            invalid_sets=[
                ({"model": nn.Sequential(layer)}, message)
                for layer, message in [
                    (
                        nn.Conv2d(3, 25, 2),
                        "has 25 output channels, but patches of 3 x 2 x 2 give at",
                    ),
                    (nn.Conv2d(2, 4, 2), "the 2 channels of the first convolution, 0, not 3"),
                    (nn.Conv2d(3, 3, 2, groups=3), "has groups=3"),
                    (nn.Conv2d(3, 3, 2, dilation=2), r"dilation=\(2, 2\)"),
                    (nn.LazyConv2d(3, 2), "0, is computed by a parametrization or not yet known"),
                    (weight_norm(nn.Conv2d(3, 3, 2)), "is computed by a parametriz"),
                ]
            ],
        ),
        FunctionCase(
            F.whitening_filters,
            arguments=lambda n: (images(n), (2, 2)),
            expected_failures={"gradients": CONSTANT, "empty_batch": NO_PATCHES},
        ),
    ],
    algorithm=AlgorithmCase(
        WhitenedFirstLayer,
        {"sample": [sample], "eps": [5e-4, 0.1]},
        meaning=lambda a, s: {"model": F.whiten_first_layer(s.model, a.sample(), eps=a.eps)},
        neutral="its filters are never the model's",
        cannot={LANGUAGE: "it has no convolutions"},
        order_matters={
            "Factorize": "one factorizes the filters of the other",
            "WeightStandardization": ("one standardizes the filters of the other", ONE_FAILS),
        },
    ),
    invalid={
        "inputs": (*NO_FLOAT_IMAGES, torch.zeros(1, 3, 1, 1)),
        "size": (3, None, "xy", (), (2,), (4, 2.5), (4, 0), (99, 99)),
        "eps": NO_POSITIVE,
        "sample": (3, None, "x", torch.zeros(2, 3, 8, 8), nn.Conv2d),
    },
    overview=Overview(
        group=SURGERY,
        summary="whitens patches of the images by a frozen first convolution",
        changes="the first convolution: frozen filters that whiten patches",
        cost="× 0.88",
        evidence="paper: [Jordan 2024](https://arxiv.org/abs/2404.00498)",
        use_for="small convolutional networks that are trained from scratch in a few epochs",
    ),
)
