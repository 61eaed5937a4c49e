"""CutOut."""

from math import inf

import composable.functional as F
from composable.algorithms import CutOut
from tests.support.cases import AUGMENTATION, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_IMAGES, no_count, no_number
from tests.support.meaning import on_inputs
from tests.support.runs import LANGUAGE

CASE = Case(
    functions=[
        FunctionCase(F.cutout, invalid={"inputs": NO_IMAGES}),
        FunctionCase(F.cutout, {"per_sample": False}),
        FunctionCase(F.draw_cutout),
        FunctionCase(F.apply_cutout),
    ],
    algorithm=AlgorithmCase(
        CutOut,
        {"num_holes": [2, 1], "length": [3, 0.5], "per_sample": [True, False]},
        meaning=on_inputs(F.cutout),
        cannot={LANGUAGE: "token ids are not images"},
        order_matters={"RandAugment": "each modifies the pixels that the other produced"},
    ),
    invalid={"num_holes": no_count(0), "length": no_number(-0.1, -1, 1.5, inf)},
    overview=Overview(
        group=AUGMENTATION,
        summary="masks random squares of each image",
        changes="images: square holes",
        cost="+0.2 %",
        evidence="paper: [DeVries and Taylor 2017](https://arxiv.org/abs/1708.04552)",
        use_for="small images, long training",
    ),
)
