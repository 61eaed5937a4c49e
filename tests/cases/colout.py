"""ColOut."""

import composable.functional as F
from composable.algorithms import ColOut
from tests.support.arguments import seeded, with_maps
from tests.support.cases import COMPUTE, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import (
    NO_DENSE_TARGETS,
    NO_IMAGES,
    NO_PROBABILITY_BELOW_ONE,
    NO_TENSOR,
    no_count,
)
from tests.support.meaning import hyperparameters_of
from tests.support.runs import LANGUAGE

CASE = Case(
    functions=[
        FunctionCase(F.colout, arguments=with_maps),
        FunctionCase(F.colout, {"per_sample": True}, arguments=with_maps),
        FunctionCase(
            F.draw_colout,
            arguments=((8, 8),),
            # None stands for one draw for the whole batch.
            invalid={"batch_size": tuple(v for v in no_count(0) if v is not None)},
        ),
        FunctionCase(
            F.apply_colout,
            arguments=lambda n: (*with_maps(n), F.draw_colout((8, 8), generator=seeded())),
            invalid={"inputs": NO_TENSOR},
        ),
    ],
    algorithm=AlgorithmCase(
        ColOut,
        {"p_row": [0.25], "p_col": [0.25, 0.0], "per_sample": [False, True]},
        meaning=lambda a, s: {
            "batch": tuple(
                F.colout(
                    s.inputs, s.targets, **hyperparameters_of(a), generator=s.generator(a.name)
                )
            )
        },
        cannot={LANGUAGE: "token ids are not images"},
        order_matters={
            "AugMix CutOut RandAugment": (
                "one draws positions for the image size that the other produced"
            ),
        },
    ),
    invalid={
        "inputs": NO_IMAGES,
        "targets": NO_DENSE_TARGETS,
        "p_row": NO_PROBABILITY_BELOW_ONE,
        "p_col": NO_PROBABILITY_BELOW_ONE,
    },
    overview=Overview(
        group=COMPUTE,
        summary="drops random rows and columns of the images",
        changes="images: random rows and columns are dropped",
        cost="× 0.61 to × 0.7",
        evidence=(
            "practice, at a loss of accuracy: [Composer]"
            "(https://docs.mosaicml.com/projects/composer/en/stable/method_cards/colout.html)"
        ),
        use_for="where a small loss of accuracy is acceptable",
    ),
)
