"""AugMix."""

import torch

import composable.functional as F
from composable.algorithms import AugMix
from composable.testing.problems import CLASSES
from tests.support.arguments import of_images
from tests.support.cases import (
    AUGMENTATION,
    MEAN_OF_NONE,
    AlgorithmCase,
    Case,
    FunctionCase,
    Overview,
)
from tests.support.invalid import (
    NO_DEPTH,
    NO_TENSOR,
    no_count,
)
from tests.support.meaning import on_inputs
from tests.support.runs import LANGUAGE

CASE = Case(
    functions=[
        FunctionCase(F.augmix, arguments=of_images),
        FunctionCase(F.draw_augmix),
        FunctionCase(F.apply_augmix, invalid={"images": NO_TENSOR}),
        FunctionCase(
            F.jensen_shannon_loss,
            arguments=lambda n: tuple(torch.randn(3, n, CLASSES)),
            invalid={"logits": NO_TENSOR, "others": (*NO_TENSOR, torch.zeros(4, 2))},
            expected_failures=MEAN_OF_NONE,
        ),
    ],
    algorithm=AlgorithmCase(
        AugMix,
        {"severity": [9, 3], "width": [2, 1], "augmentations": ["safe"]},
        meaning=on_inputs(F.augmix, "mean", "std"),
        invalid_sets=[
            ({"std": (0.5,)}, r"mean=None and std=\(0.5,\) must be given together"),
            ({"mean": (0.5,), "std": (0,)}, r"std=\(0,\) must be greater than 0"),
        ],
        cannot={LANGUAGE: "token ids are not images"},
        order_matters={"CutOut RandAugment": "each modifies the pixels that the other produced"},
        external={"mean": (0.5, 0.5), "std": (0.1, 0.1)},
    ),
    invalid={
        "depth": NO_DEPTH,
        "width": no_count(1),
    },
    overview=Overview(
        group=AUGMENTATION,
        summary="mixes each image with augmentations of itself",
        changes="images: mixed with augmentations of themselves",
        cost="+5 %; with its loss three times as much",
        evidence="paper: [Hendrycks et al. 2020](https://arxiv.org/abs/1912.02781)",
        use_for="models that must be robust to noise, blur and weather",
    ),
)
