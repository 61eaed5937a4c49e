"""Value residual."""

from torch import nn

import composable.functional as F
from composable.algorithms import ValueResidual
from tests.support.arguments import rows
from tests.support.cases import SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_SHARE
from tests.support.meaning import surgery
from tests.support.models import WIDTH, ProjectedAttention
from tests.support.runs import VISION

CASE = Case(
    functions=[
        FunctionCase(
            F.value_residual,
            arguments=lambda n: (
                nn.Sequential(ProjectedAttention(WIDTH), ProjectedAttention(WIDTH)),
            ),
            inputs=rows(5, WIDTH),
            sought="two layers of values or more, in attention of the classes .*ProjectedAttention",
            added=r"1\.qkv\.value_residual\.scales",
        ),
    ],
    algorithm=AlgorithmCase(
        ValueResidual,
        {"share": [0.5, 1.0]},
        meaning=surgery(F.value_residual),
        neutral=ValueResidual(share=0.0),
        cannot={VISION: "it has no layers of values"},
        order_matters={
            "Factorize": "a layer of values with a residual is not factorized",
            "ValueEmbeddings": "the values are mixed with or without the embeddings",
        },
    ),
    invalid={"share": NO_SHARE},
    overview=Overview(
        group=SURGERY,
        summary="adds the values of the first layer of attention to later layers'",
        changes="values of attention: mixed with the first layer's",
        cost="× 1.04",
        evidence="paper: [Zhou et al. 2024](https://arxiv.org/abs/2410.17897)",
        use_for="transformers that are trained from scratch",
    ),
)
