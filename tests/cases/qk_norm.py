"""Query-key normalization, and the registry of attention."""

import composable.functional as F
from composable.algorithms import QKNorm
from tests.support.cases import SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_CLASS, NO_POSITIVE
from tests.support.meaning import surgery
from tests.support.runs import VISION
from tests.support.surgery import ATTENTION, of_language_model

CASE = Case(
    functions=[
        of_language_model(F.qk_norm, sought=ATTENTION, added=r".*\.qk_norm\.gain"),
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
