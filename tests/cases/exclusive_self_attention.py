"""Exclusive self-attention."""

import composable.functional as F
from composable.algorithms import ExclusiveSelfAttention
from tests.support.arguments import token_ids
from tests.support.cases import SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.meaning import surgery
from tests.support.models import language_model
from tests.support.runs import VISION

CASE = Case(
    functions=[
        FunctionCase(
            F.exclusive_self_attention,
            {"learned": learned},
            arguments=lambda n: (language_model(one_by_one=True),),
            inputs=token_ids,
        )
        for learned in (False, True)
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
