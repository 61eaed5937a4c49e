"""A gate on the output of attention."""

import composable.functional as F
from composable.algorithms import AttentionOutputGate
from tests.support.arguments import token_ids
from tests.support.cases import SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import no_count
from tests.support.meaning import surgery
from tests.support.models import language_model
from tests.support.runs import VISION

CASE = Case(
    functions=[
        FunctionCase(
            F.attention_output_gate,
            needs={"channels": 4},
            arguments=lambda n: (language_model(one_by_one=True),),
            inputs=token_ids,
        ),
    ],
    algorithm=AlgorithmCase(
        AttentionOutputGate,
        {"channels": [4, 1, 8]},
        meaning=surgery(F.attention_output_gate),
        neutral=AttentionOutputGate(channels=4),
        cannot={VISION: "it has no attention"},
    ),
    invalid={"channels": no_count(1)},
    overview=Overview(
        group=SURGERY,
        summary="gates the output of each head of attention",
        changes="attention: a gate on the output of each head",
        cost="× 1.04",
        evidence="paper: [Qiu et al. 2025](https://arxiv.org/abs/2505.06708)",
        use_for="transformers that are trained from scratch",
    ),
)
