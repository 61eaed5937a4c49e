"""FixRes."""

from math import inf

import composable.functional as F
from composable.algorithms import FixRes
from tests.support.cases import OPTIMIZATION, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.integrations import EVALUATED_BATCHES, everywhere
from tests.support.invalid import NO_IMAGES, NO_POSITIVE, no_number
from tests.support.meaning import hyperparameters_of
from tests.support.runs import LANGUAGE

CASE = Case(
    functions=[
        FunctionCase(F.fixres, invalid={"inputs": NO_IMAGES}),
        FunctionCase(
            F.fixres_scale,
            arguments={"area": (0.25, 1.0)},
            invalid_sets=[({"area": (0.5, 0.25)}, "must be the smallest area first")],
        ),
    ],
    algorithm=AlgorithmCase(
        FixRes,
        {"scale_factor": [1.5, 2], "size_increment": [1, 2]},
        meaning=lambda a, s: {"batch": (F.fixres(s.inputs, **hyperparameters_of(a)), s.targets)},
        cannot={LANGUAGE: "token ids are not images"},
        refused=everywhere(EVALUATED_BATCHES),
    ),
    invalid={
        "scale_factor": NO_POSITIVE,
        "area": (3, "x", None, (1,), (0.0, 1.0), (0.5, 1.5), (0.5, "x")),
        "test_crop": no_number(0, -1, 1.1, inf),
        "train_zoom": NO_POSITIVE,
    },
    overview=Overview(
        group=OPTIMIZATION,
        summary="evaluates images at a higher resolution than in training",
        changes="images of evaluations: enlarged",
        cost="nothing in training",
        evidence="paper: [Touvron et al. 2019](https://arxiv.org/abs/1906.06423)",
        use_for="image classifiers that are trained on random crops",
    ),
)
