"""Attention windows that grow."""

from torch import nn

import composable.functional as F
from composable import State
from composable.algorithms import WindowWarmup
from composable.core.time import elapsed
from tests.support.cases import SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_SCALE, NO_SHARE, no_count
from tests.support.meaning import hyperparameters_of
from tests.support.runs import VISION
from tests.support.surgery import ATTENTION, of_language_model

NO_WINDOW = (0, 2.5, "3", True)
INCREASING = "min_window=5 must be at most max_window=4"


def windows(a: WindowWarmup, s: State) -> dict[str, nn.Module]:
    """Set the windows of the time."""
    schedule = hyperparameters_of(a, "short_share", "every")
    window = F.warmed_up_window(elapsed(s) if a.duration else 1.0, **schedule)
    return {"model": F.sliding_window(s.model, window=window, short_window=window, every=a.every)}


CASE = Case(
    functions=[
        of_language_model(
            F.sliding_window,
            needs={"window": 2},
            sought=ATTENTION,
            invalid={"window": NO_WINDOW, "short_window": NO_WINDOW},
            invalid_sets=[({"short_window": 3}, "short_window=3 must be at most window=2")],
        ),
        FunctionCase(
            F.warmed_up_window,
            arguments=(0.25,),
            invalid_sets=[({"min_window": 5, "max_window": 4}, INCREASING)],
        ),
    ],
    algorithm=AlgorithmCase(
        WindowWarmup,
        {
            "duration": [0.5, 0.0],
            "min_window": [2, 1],
            "max_window": [4],
            "steps": [2],
            "every": [2, 1],
            "short_share": [1.0],
        },
        meaning=windows,
        neutral=WindowWarmup(min_window=64, max_window=64, short_share=1.0),
        invalid_sets=[({"min_window": 5, "max_window": 4}, INCREASING)],
        cannot={VISION: "it has no attention"},
        external={"duration": 0.0},
    ),
    invalid={
        "duration": NO_SHARE,
        "min_window": no_count(1),
        "max_window": no_count(1),
        "steps": no_count(1),
        "every": no_count(1),
        "short_share": NO_SCALE,
    },
    overview=Overview(
        group=SURGERY,
        summary="lets attention see the last tokens alone, and more of them later",
        changes="attention: sliding windows, long and short, that grow",
        cost="× 0.76 with a window of 128 for 2048 tokens",
        evidence="practice: [modded-nanogpt 2025](https://github.com/KellerJordan/modded-nanogpt)",
        use_for="causal language models with a long context, whose attention is expensive",
    ),
)
