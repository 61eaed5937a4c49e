"""Layer freezing."""

from collections.abc import Mapping
from typing import Any

import composable.functional as F
from composable import State
from composable.algorithms import LayerFreezing
from tests.support.cases import COMPUTE, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.integrations import FREEZES_BEFORE, in_callbacks
from tests.support.invalid import NO_SHARE
from tests.support.meaning import hyperparameters_of


def frozen(a: Any, s: State) -> Mapping[str, Any]:
    """Freeze the parameters of the layers that `frozen_layers` names."""
    layers = F.frozen_layers(s.model, elapsed=s.elapsed, **hyperparameters_of(a))
    return {"frozen": frozenset(layers.parameters)}


CASE = Case(
    functions=[
        FunctionCase(
            F.frozen_layers,
            needs={"elapsed": 0.75},
            invalid={"elapsed": NO_SHARE},
        )
    ],
    algorithm=AlgorithmCase(
        LayerFreezing,
        {"freeze_start": [0.0, 0.3], "freeze_level": [1.0, 0.6]},
        meaning=frozen,
        refused=in_callbacks(FREEZES_BEFORE),
        external={"freeze_start": 0.2},
    ),
    invalid={"freeze_start": NO_SHARE, "freeze_level": NO_SHARE},
    overview=Overview(
        group=COMPUTE,
        summary="stops training the first layers part of the way through the run",
        changes="the first layers: frozen part of the way through the run",
        cost="× 0.54 with half of them frozen",
        evidence=(
            "paper, at some loss for some networks: "
            "[Brock et al. 2017](https://arxiv.org/abs/1706.04983)"
        ),
        use_for="fine-tuning, and long runs whose first layers have converged",
    ),
)
