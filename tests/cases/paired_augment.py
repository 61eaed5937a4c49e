"""Paired augmentation."""

import torch

import composable.functional as F
from composable.algorithms import PairedAugment
from tests.support.arguments import images
from tests.support.cases import AUGMENTATION, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_INDICES
from tests.support.runs import LANGUAGE


def turned(images, amount):
    """Rotate images to either side."""
    return F.images.rotate(images, 30 * amount)


NO_FUNCTION = (3, "rotate", None)

CASE = Case(
    functions=[
        FunctionCase(
            F.paired_augment,
            needs={"epoch": 1},
            arguments=lambda n: (images(n), torch.arange(n), turned),
        ),
        FunctionCase(
            F.draw_paired_augment, needs={"epoch": 1}, arguments=lambda n: (torch.arange(n),)
        ),
    ],
    algorithm=AlgorithmCase(
        PairedAugment,
        {"transform": [turned], "index_key": [1]},  # the labels: any integers will do
        meaning=lambda a, s: {
            "batch": (
                F.paired_augment(
                    s.inputs,
                    s.targets,
                    turned,
                    epoch=s.timestamp.epoch,
                    seed=s.key.fold(a.name).seed >> 1,
                ),
                s.targets,
            )
        },
        cannot={LANGUAGE: "token ids are not images"},
        order_matters={
            "AlternatingFlip AugMix ColOut CutOut ProgressiveResizing RandAugment "
            "RandomTranslation": ("one moves the pixels that the other made"),
            "SelectiveBackprop": "examples are chosen by their loss before or after the change",
        },
    ),
    invalid={
        "transform": NO_FUNCTION,
        "target_transform": NO_FUNCTION[:2],
        **NO_INDICES,
    },
    overview=Overview(
        group=AUGMENTATION,
        summary="augments by an amount in one epoch, and by the opposite one in the next",
        changes="inputs: opposite augmentations in alternate epochs",
        cost="as the augmentation",
        evidence="paper: [Jordan 2024](https://arxiv.org/abs/2404.00498), of flips",
        use_for="augmentations with an inverse, and runs of several epochs",
    ),
)
