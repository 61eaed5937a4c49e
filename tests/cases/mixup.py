"""MixUp."""

import composable.functional as F
from composable.algorithms import MixUp
from tests.support.cases import AUGMENTATION, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.meaning import mixing
from tests.support.runs import LANGUAGE

CASE = Case(
    functions=[
        FunctionCase(F.mixup),
        FunctionCase(F.mixup, {"per_sample": True}),
        FunctionCase(F.draw_mixup),
        FunctionCase(F.apply_mixup),
    ],
    algorithm=AlgorithmCase(
        MixUp,
        {"alpha": [1.0, 0.4], "per_sample": [False, True], "interpolate_loss": [False, True]},
        meaning=mixing(F.mixup),
        cannot={LANGUAGE: "between two token ids lies no token"},
        external={"alpha": 0.4},
    ),
    overview=Overview(
        group=AUGMENTATION,
        summary="trains on convex combinations of pairs of examples and of their labels",
        changes="inputs and targets: convex combinations of pairs",
        cost="+0.2 %",
        evidence="wide: [Zhang et al. 2018](https://arxiv.org/abs/1710.09412)",
        use_for="image classification, long training, a network that overfits",
    ),
)
