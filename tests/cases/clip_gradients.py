"""Gradient clipping."""

from collections.abc import Mapping
from math import inf
from typing import Any

import composable.functional as F
from composable import State
from composable.algorithms import GradientClipping
from tests.support.arguments import named
from tests.support.cases import OPTIMIZATION, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_GRADS, no_number


def clipped(a: Any, s: State) -> Mapping[str, Any]:
    """Clip the gradients."""
    options = {"method": a.clipping_type, "threshold": a.clipping_threshold}
    params = dict(s.model.named_parameters())
    return {"gradients": F.clip_gradients(s.current_gradients(), params=params, **options)}


CASE = Case(
    functions=[
        FunctionCase(F.clip_gradients, needs={"threshold": 0.1}, arguments=named(0)),
        FunctionCase(
            F.clip_gradients, {"method": "value"}, needs={"threshold": 0.1}, arguments=named(0)
        ),
        FunctionCase(
            F.clip_gradients,
            {"method": "adaptive"},
            needs={"threshold": 0.1},
            arguments=dict(zip(["grads", "params"], named(0, 1), strict=True)),
            expected_failures={
                "gradients": "the weights are treated as constants; only the gradients are clipped"
            },
        ),
    ],
    algorithm=AlgorithmCase(
        GradientClipping,
        {"clipping_type": ["norm", "value", "adaptive"], "clipping_threshold": [0.01, 0.1]},
        meaning=clipped,
        external={"clipping_threshold": 0.5},
    ),
    invalid={
        "grads": NO_GRADS,
        "threshold": no_number(-1.0, -inf),
        "params": (3, "x", [1.0], {"weight": 3}),
        "clipping_threshold": no_number(0, -1.0, -inf),
    },
    overview=Overview(
        group=OPTIMIZATION,
        summary="clips gradients by norm, by value, or adaptively",
        changes="gradients: clipped",
        cost="+0.1 %; adaptive +0.3 %",
        evidence="wide: [Pascanu et al. 2013](https://arxiv.org/abs/1211.5063)",
        use_for="runs in which a rare batch has a huge gradient",
    ),
)
