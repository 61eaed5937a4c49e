"""Ensembles and mixtures of models."""

from math import nan

import torch
from torch import Tensor

import composable.functional as F
from tests.support.cases import OPTIMIZATION, Case, FunctionCase, Overview
from tests.support.invalid import NO_TENSOR, no_count


def of_models(size: int) -> tuple[list[Tensor]]:
    """Return the logits of three models."""
    return ([torch.randn(size, 5) for _ in range(3)],)


REFUSED = "refuses examples without a likelihood, which only the values tell; no step fits weights"

CASE = Case(
    functions=[
        FunctionCase(
            F.average_probabilities,
            arguments=of_models,
            invalid={
                "logits": (3, None, [], [3], [torch.zeros(2)], [torch.zeros(2, 3).long()]),
                "weights": (3, "x", [0.5, 0.5, 0.0], torch.ones(2)),
            },
            invalid_sets=[
                ({"logits": [torch.zeros(4, 1, 2)]}, r"one class in dimension 1 of shape \(4, 1, 2")
            ],
        ),
        FunctionCase(
            F.mixture_weights,
            needs={"iterations": 20},
            arguments=lambda n: (torch.randn(3, 2 * n + 1),),
            invalid={"top": (0, 4, 2.5, "3", True)},
            invalid_sets=[
                ({"log_likelihoods": torch.tensor(likelihoods).log(), "top": top}, message)
                for likelihoods, top, message in [
                    ([[0.9, 0.0], [0.1, 0.0]], None, r"the examples \[1\]: omit these examples"),
                    ([[0.9, nan], [0.1, 0.5]], None, r"the examples \[1\]: omit these examples"),
                    ([[0.9, 0.9, 0.0], [0.0, 0.0, 0.1]], 1, r"the top=1 models.*\[2\]: raise top"),
                ]
            ],
            expected_failures={
                "gradients": "the weights are fitted, and detached",
                **dict.fromkeys(("compile", "vmap", "no_sync"), REFUSED),
            },
        ),
    ],
    invalid={
        "log_likelihoods": (
            *NO_TENSOR,
            torch.zeros(4),
            torch.zeros(0, 3),
            torch.zeros(2, 3).long(),
        ),
        "iterations": no_count(1),
    },
    overview=Overview(
        group=OPTIMIZATION,
        summary="averages the probabilities of snapshots, with weights fitted to held-out data",
        changes="predictions: averages over models",
        cost="none in training; an evaluation for each model",
        evidence="wide: [Huang et al. 2017](https://arxiv.org/abs/1704.00109)",
        use_for="the best result from the snapshots of one run, or from several runs",
    ),
)
