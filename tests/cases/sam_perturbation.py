"""Sharpness-aware minimization."""

from collections.abc import Mapping
from math import inf
from typing import Any

import composable.functional as F
from composable import State
from composable.algorithms import SAM
from tests.support.arguments import named
from tests.support.cases import OPTIMIZATION, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.integrations import SECOND_PASS, everywhere
from tests.support.invalid import NO_POSITIVE, NO_TENSORS, no_number


def perturbed(a: Any, s: State) -> Mapping[str, Any]:
    """Compute the weights of the second pass."""
    params = dict(s.model.named_parameters())
    return {
        "second_pass": F.sam_perturbation(
            params, s.current_gradients(), rho=a.rho, epsilon=a.epsilon
        )
    }


CASE = Case(
    functions=[
        FunctionCase(
            F.sam_perturbation,
            arguments=named(0, 1),
            expected_failures={
                "gradients": "the perturbation is treated as a constant, as in the paper"
            },
        )
    ],
    algorithm=AlgorithmCase(
        SAM,
        {"rho": [0.5, 0.05], "interval": [1, 2]},
        meaning=perturbed,
        refused=everywhere(SECOND_PASS),
    ),
    invalid={
        "params": NO_TENSORS,
        "grads": NO_TENSORS,
        "rho": no_number(-0.1, inf),
        "epsilon": NO_POSITIVE,
    },
    overview=Overview(
        group=OPTIMIZATION,
        summary=(
            "sharpness-aware minimization: takes the gradient at the worst-case nearby weights"
        ),
        changes="gradients: those at the worst-case nearby weights",
        cost="× 2.0; × 1.1 in every tenth batch",
        evidence=(
            "paper, and many works since: [Foret et al. 2021](https://arxiv.org/abs/2010.01412)"
        ),
        use_for="where accuracy matters more than time: vision transformers above all",
    ),
)
