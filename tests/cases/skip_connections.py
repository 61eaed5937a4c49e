"""Skip connections with learned scales."""

from torch import nn

import composable.functional as F
from composable.algorithms import SkipConnections
from tests.support.arguments import rows
from tests.support.cases import SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_BLOCK, NO_POSITIVE, no_count, no_word
from tests.support.meaning import drawn_surgery
from tests.support.models import WIDTH, Attention, Hidden
from tests.support.runs import VISION

CASE = Case(
    functions=[
        FunctionCase(
            F.skip_connections,
            {"dynamic": True},
            needs={"target": Hidden},
            arguments=lambda n: (nn.Sequential(*(Hidden(WIDTH) for _ in range(3))),),
            inputs=rows(5, WIDTH),
            sought="stacks of blocks of the classes .*Hidden",
            added=r"[12]\.skip_(down|up|bias)",
        )
    ],
    algorithm=AlgorithmCase(
        SkipConnections,
        {
            "target": [(Attention, Hidden)],
            "sources": ["embedding", "mirrored", "all"],
            "dynamic": [False, True],
            "hidden": [4],
        },
        meaning=drawn_surgery(F.skip_connections),
        neutral=SkipConnections(target=(Attention, Hidden)),
        cannot={VISION: "its layers have different shapes"},
    ),
    invalid={
        "sources": no_word(),
        "last": (0, 2.5, "3", True),
        "hidden": no_count(1),
        "scale": NO_POSITIVE,
        "target": NO_BLOCK,
    },
    overview=Overview(
        group=SURGERY,
        summary="adds skip connections with learned scales to residual blocks",
        changes="inputs of blocks: scaled sums with the embedding or earlier blocks",
        cost="× 1.01; dynamic × 1.03",
        evidence="paper: [DenseFormer](https://arxiv.org/abs/2402.02622), "
        "[MUDDFormer](https://arxiv.org/abs/2502.12170)",
        use_for="deep transformers that are trained from scratch",
    ),
)
