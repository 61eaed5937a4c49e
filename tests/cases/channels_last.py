"""The channels-last memory format."""

import composable.functional as F
from composable.algorithms import ChannelsLast
from tests.support.cases import SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.meaning import surgery
from tests.support.runs import LANGUAGE

IMAGES = r"[04]\.weight"

CASE = Case(
    functions=[
        FunctionCase(
            F.channels_last,
            sought="parameters and buffers of 4 dimensions",
            removed=IMAGES,
            added=IMAGES,
        )
    ],
    algorithm=AlgorithmCase(
        ChannelsLast,
        meaning=surgery(F.channels_last),
        neutral=ChannelsLast(),
        cannot={LANGUAGE: "it has no convolutions"},
    ),
    overview=Overview(
        group=SURGERY,
        summary="stores images and weights in the channels-last memory format",
        changes="memory format: channels last",
        cost="× 0.72",
        evidence="practice",
        use_for="convolutions on GPUs, especially in low precision",
    ),
)
