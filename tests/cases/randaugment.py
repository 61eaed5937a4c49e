"""RandAugment."""

import composable.functional as F
from composable.algorithms import RandAugment
from tests.support.arguments import of_images
from tests.support.cases import AUGMENTATION, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_TENSOR, no_count
from tests.support.meaning import on_inputs
from tests.support.runs import LANGUAGE

CASE = Case(
    functions=[
        FunctionCase(F.randaugment, arguments=of_images),
        FunctionCase(F.draw_randaugment),
        FunctionCase(F.apply_randaugment, invalid={"images": NO_TENSOR}),
    ],
    algorithm=AlgorithmCase(
        RandAugment,
        {"severity": [9, 3], "depth": [3, 1], "augmentations": ["safe"]},
        meaning=on_inputs(F.randaugment, "mean", "std"),
        invalid_sets=[
            ({"mean": (0.5,)}, r"mean=\(0.5,\) and std=None must be given together"),
            ({"std": (0.5,)}, r"mean=None and std=\(0.5,\) must be given together"),
            ({"mean": (0.5,), "std": (0,)}, r"std=\(0,\) must be greater than 0"),
            ({"mean": ("a",), "std": (1,)}, r"mean=\('a',\) must be a sequence of numbers, one"),
            ({"mean": 0.5, "std": 0.5}, "mean=0.5 must be a sequence of numbers, one per channel"),
        ],
        cannot={LANGUAGE: "token ids are not images"},
        external={"mean": (0.5, 0.5), "std": (0.1, 0.1)},
    ),
    invalid={"depth": no_count(0)},
    overview=Overview(
        group=AUGMENTATION,
        summary="applies a few random operations to each image",
        changes="images: a few random operations",
        cost="+2 %",
        evidence="wide: [Cubuk et al. 2019](https://arxiv.org/abs/1909.13719)",
        use_for="image classification, long training; not where orientation or colour matters",
    ),
)
