"""Value residual."""

from torch import nn

import composable.functional as F
from tests.support.arguments import rows
from tests.support.cases import SURGERY, Case, FunctionCase, Overview
from tests.support.invalid import NO_SHARE
from tests.support.models import WIDTH, ProjectedAttention

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
    invalid={"share": NO_SHARE},
    overview=Overview(
        group=SURGERY,
        summary="adds the values of the first layer of attention to those of later ones",
        changes="values of attention: mixed with those of the first layer",
        cost="× 1.04",
        evidence="paper: [Zhou et al. 2024](https://arxiv.org/abs/2410.17897)",
        use_for="transformers that are trained from scratch",
    ),
)
