"""A gate on the output of attention."""

import composable.functional as F
from composable.algorithms import AttentionOutputGate
from tests.support.cases import SURGERY, AlgorithmCase, Case, Overview
from tests.support.meaning import surgery
from tests.support.runs import VISION
from tests.support.surgery import ATTENTION, of_language_model

CASE = Case(
    functions=[
        of_language_model(
            F.attention_output_gate,
            needs={"channels": 4},
            sought=ATTENTION,
            added=r".*\.attention_output_gate\.gate",
        ),
    ],
    algorithm=AlgorithmCase(
        AttentionOutputGate,
        {"channels": [4, 1, 8]},
        meaning=surgery(F.attention_output_gate),
        neutral=AttentionOutputGate(channels=4),
        cannot={VISION: "it has no attention"},
    ),
    overview=Overview(
        group=SURGERY,
        summary="gates the output of each head of attention",
        changes="attention: a gate on the output of each head",
        cost="× 1.04",
        evidence="paper: [Qiu et al. 2025](https://arxiv.org/abs/2505.06708)",
        use_for="transformers that are trained from scratch",
    ),
)
