"""Exclusive self-attention."""

import composable.functional as F
from composable.algorithms import ExclusiveSelfAttention
from tests.support.cases import NEVER, SURGERY, AlgorithmCase, Case, Overview
from tests.support.meaning import surgery
from tests.support.runs import VISION
from tests.support.surgery import ATTENTION, of_language_model

CASE = Case(
    functions=[
        of_language_model(
            F.exclusive_self_attention, {"learned": learned}, sought=ATTENTION, added=added
        )
        for learned, added in [(False, NEVER), (True, r".*\.exclusive_self_attention\.strength")]
    ],
    algorithm=AlgorithmCase(
        ExclusiveSelfAttention,
        {"learned": [False, True]},
        meaning=surgery(F.exclusive_self_attention),
        neutral=ExclusiveSelfAttention(learned=True),
        cannot={VISION: "it has no attention"},
    ),
    overview=Overview(
        group=SURGERY,
        summary="removes a token's own value from its attention",
        changes="attention: outputs without the token's own value",
        cost="× 1.08",
        evidence="paper: [Exclusive Self Attention 2026](https://arxiv.org/abs/2603.09078)",
        use_for="transformers that are trained from scratch",
    ),
)
