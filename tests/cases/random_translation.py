"""Random translation."""

import torch

import composable.functional as F
from composable.algorithms import RandomTranslation
from tests.support.cases import AUGMENTATION, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_IMAGES, NO_TENSOR, no_count
from tests.support.meaning import on_inputs
from tests.support.runs import LANGUAGE

CASE = Case(
    functions=[
        FunctionCase(
            F.random_translation,
            invalid={"inputs": NO_IMAGES, "max_shift": (8,)},
            invalid_sets=[({"max_shift": 8}, r"max_shift=8 must be less than each side.*\(8, 8\)")],
        ),
        FunctionCase(F.draw_random_translation, invalid={"max_shift": (8,)}),
        FunctionCase(
            F.apply_random_translation,
            invalid={"draw": (*NO_TENSOR, torch.zeros(4, 2), torch.zeros(4, 2).bool())},
        ),
    ],
    algorithm=AlgorithmCase(
        RandomTranslation,
        {"max_shift": [2, 1]},
        meaning=on_inputs(F.random_translation),
        cannot={LANGUAGE: "token ids are not images"},
        order_matters={
            "AlternatingFlip AugMix ColOut CutOut ProgressiveResizing RandAugment": (
                "one shifts the pixels that the other made"
            ),
            "SelectiveBackprop": "examples are chosen by their loss before or after the shift",
        },
    ),
    invalid={"max_shift": no_count(0)},
    overview=Overview(
        group=AUGMENTATION,
        summary="shifts each image by a few pixels, with reflected borders",
        changes="images: shifted by a few pixels",
        cost="+0.3 %",
        evidence="wide: [He et al. 2016](https://arxiv.org/abs/1512.03385), "
        "[Jordan 2024](https://arxiv.org/abs/2404.00498)",
        use_for="small images, and runs of several epochs",
    ),
)
