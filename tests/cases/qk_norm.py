"""Query-key normalization, and the registry of attention."""

import composable.functional as F
from composable.algorithms import QKNorm
from tests.support.arguments import token_ids
from tests.support.cases import SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_CLASS, NO_POSITIVE
from tests.support.meaning import surgery
from tests.support.models import language_model
from tests.support.runs import VISION

CASE = Case(
    functions=[
        FunctionCase(
            F.qk_norm, arguments=lambda n: (language_model(one_by_one=True),), inputs=token_ids
        ),
        FunctionCase(
            F.register_attention,
            arguments={"kind": "some.module.Class"},
            invalid={"kind": NO_CLASS, "heads": (3, None, "")},
            no_row="it adds to a registry, and computes nothing",
        ),
    ],
    algorithm=AlgorithmCase(
        QKNorm,
        {"gain": [1.0, 4], "learned": [True, False]},
        meaning=surgery(F.qk_norm),
        neutral="it normalizes queries and keys",
        cannot={VISION: "it has no attention"},
    ),
    invalid={"gain": NO_POSITIVE},
    overview=Overview(
        group=SURGERY,
        summary="normalizes the queries and keys of attention",
        changes="attention: normalized queries and keys, with a learned scale",
        cost="× 1.07",
        evidence="wide: [Henry et al. 2020](https://arxiv.org/abs/2010.04245)",
        use_for="transformers whose training is unstable at the best learning rate",
    ),
)
