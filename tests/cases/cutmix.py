"""CutMix."""

import composable.functional as F
from composable.algorithms import CutMix
from tests.support.cases import AUGMENTATION, BOTH_FAIL, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_IMAGES
from tests.support.meaning import mixing
from tests.support.runs import LANGUAGE

CASE = Case(
    functions=[
        FunctionCase(F.cutmix, invalid={"inputs": NO_IMAGES}),
        FunctionCase(F.cutmix, {"per_sample": True}),
        FunctionCase(F.draw_cutmix),
        FunctionCase(F.apply_cutmix),
    ],
    algorithm=AlgorithmCase(
        CutMix,
        {
            "per_sample": [True, False],
            "uniform_sampling": [False, True],
            "interpolate_loss": [False, True],
        },
        meaning=mixing(F.cutmix),
        cannot={LANGUAGE: "token ids are not images"},
        order_matters={
            "MixUp": ("both mix the batch, and a mixed batch cannot be mixed again", BOTH_FAIL)
        },
    ),
    overview=Overview(
        group=AUGMENTATION,
        summary="replaces a box of each image by another image's",
        changes="inputs and targets: a box of another example",
        cost="+0.1 %",
        evidence="wide: [Yun et al. 2019](https://arxiv.org/abs/1905.04899)",
        use_for="as MixUp; also for models that must localize objects",
    ),
)
