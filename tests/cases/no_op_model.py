"""The model that computes nothing."""

import composable.functional as F
from composable.algorithms import NoOpModel
from tests.support.cases import DIAGNOSTICS, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.integrations import LOSS_INSIDE, OWN_MODEL
from tests.support.meaning import surgery

CASE = Case(
    functions=[FunctionCase(F.no_op_model)],
    algorithm=AlgorithmCase(
        NoOpModel,
        meaning=surgery(F.no_op_model),
        neutral="it computes nothing",
        alone="it leaves no layers and no outputs to those that look at them",
        refused={
            "Lightning, callback": LOSS_INSIDE,
            "HF, callback": OWN_MODEL,
            "HF, mixin": OWN_MODEL,
        },
    ),
    overview=Overview(
        group=DIAGNOSTICS,
        summary="replaces the model by one that computes nothing, to measure the rest",
        changes="the model: computes nothing",
        cost="next to nothing",
        evidence="practice",
        use_for="finding out whether the data pipeline is the bottleneck",
    ),
)
