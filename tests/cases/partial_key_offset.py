"""Partial key offset."""

import composable.functional as F
from composable.algorithms import PartialKeyOffset
from tests.support.cases import BOTH_FAIL, SURGERY, AlgorithmCase, Case, Overview
from tests.support.invalid import no_count, no_number
from tests.support.meaning import surgery
from tests.support.runs import VISION
from tests.support.surgery import ATTENTION, of_language_model

CASE = Case(
    functions=[
        of_language_model(F.partial_key_offset, sought=ATTENTION),
    ],
    algorithm=AlgorithmCase(
        PartialKeyOffset,
        {"fraction": [0.5, 0.75], "every": [4, 1]},
        meaning=surgery(F.partial_key_offset),
        neutral="it changes keys",
        cannot={VISION: "it has no attention"},
        order_matters={
            "Rotary": ("rotated features can't be offset; `Rotary(fraction=0.5)` can", BOTH_FAIL)
        },
    ),
    invalid={"fraction": no_number(0, 1, -0.1, 1.1), "every": no_count(1)},
    overview=Overview(
        group=SURGERY,
        summary="offsets a part of each key by a token",
        changes="attention: a part of each key comes from the previous token",
        cost="× 1.01",
        evidence="practice: [modded-nanogpt 2026](https://github.com/KellerJordan/modded-nanogpt/pull/169)",
        use_for="causal language models that are trained from scratch",
    ),
)
