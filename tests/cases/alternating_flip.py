"""Alternating flip."""

import torch

import composable.functional as F
from composable.algorithms import AlternatingFlip
from tests.support.arguments import images
from tests.support.cases import AUGMENTATION, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_INDICES, NO_TENSOR
from tests.support.runs import LANGUAGE

CASE = Case(
    functions=[
        FunctionCase(
            F.alternating_flip,
            needs={"epoch": 1},
            arguments=lambda n: (images(n), torch.arange(n)),
        ),
        FunctionCase(
            F.draw_alternating_flip, needs={"epoch": 1}, arguments=lambda n: (torch.arange(n),)
        ),
        FunctionCase(
            F.apply_alternating_flip,
            arguments=lambda n: (images(n), torch.arange(n) % 2 == 0),
            invalid={"draw": NO_TENSOR},
        ),
    ],
    algorithm=AlgorithmCase(
        AlternatingFlip,
        {"index_key": [1]},  # the labels: any integers will do
        meaning=lambda a, s: {
            "batch": (
                F.alternating_flip(
                    s.inputs,
                    s.targets,
                    epoch=s.timestamp.epoch,
                    seed=s.key.fold(a.name).seed >> 1,
                ),
                s.targets,
            )
        },
        cannot={LANGUAGE: "token ids are not images"},
        order_matters={
            "AugMix ColOut CutOut ProgressiveResizing RandAugment": (
                "one flips the pixels that the other made"
            ),
            "SelectiveBackprop": "examples are chosen by their loss before or after the flip",
        },
    ),
    invalid={
        "images": NO_TENSOR,
        **NO_INDICES,
    },
    overview=Overview(
        group=AUGMENTATION,
        summary="flips each image in every other epoch",
        changes="images: mirrored in every other epoch",
        cost="+0.1 %",
        evidence="paper: [Jordan 2024](https://arxiv.org/abs/2404.00498)",
        use_for="images in which left and right are equivalent, and runs of several epochs",
    ),
)
