"""Distillation from snapshots of the run."""

from typing import Any

import torch
from torch import Tensor

import composable.functional as F
from composable import Event
from composable.algorithms import SnapshotDistillation
from tests.support.cases import (
    MEAN_OF_NONE,
    OPTIMIZATION,
    AlgorithmCase,
    Case,
    FunctionCase,
    Overview,
)
from tests.support.integrations import LOSS_INSIDE, in_callbacks
from tests.support.invalid import NO_INTERVAL, NO_POSITIVE, NO_TENSOR, no_count, no_number
from tests.support.models import weights

TEACHER = "the teacher gets no gradient"
NO_LOGITS = (*NO_TENSOR, torch.zeros(4), torch.zeros(4, 3).long())


def logits(size: int) -> tuple[Tensor, Tensor]:
    """Return the logits of a student and a teacher."""
    return torch.randn(size, 5), torch.randn(size, 5)


def weighted(size: int) -> dict[str, Any]:
    """Return logits of tokens, and weights of which some are 0."""
    weights = (torch.arange(size * 3) % 2).float().reshape(size, 3)
    return {
        "logits": torch.randn(size, 3, 5),
        "teacher_logits": torch.randn(size, 3, 5),
        "weights": weights,
    }


CASE = Case(
    functions=[
        FunctionCase(
            F.distillation_loss,
            arguments=logits,
            expected_failures={"gradients": TEACHER, **MEAN_OF_NONE},
            invalid_sets=[
                (
                    {"teacher_logits": torch.zeros(4, 3)},
                    r"teacher_logits \(4, 3\).* with the class",
                ),
                (
                    dict.fromkeys(["logits", "teacher_logits"], torch.zeros(4, 1, 2)),
                    r"one class in dimension 1 of shape \(4, 1, 2\)",
                ),
            ],
        ),
        FunctionCase(
            F.distillation_loss,
            {"class_dim": -1, "temperature": 2.0},
            of="tokens with weights",
            arguments=weighted,
            expected_failures={"gradients": TEACHER},
        ),
    ],
    algorithm=AlgorithmCase(
        SnapshotDistillation,
        {"cycle": ["1ba"], "alpha": [0.5, 0.3], "temperature": [1.0, 2.0], "class_dim": [None]},
        meaning=lambda a, s: {"memory": {a.name: {"teacher": weights(s.model), "frozen": []}}},
        acts_at=lambda a: Event.BATCH_END,
        order_matters={
            "PrefixTokens": "the sum of both losses is scaled before or after the divergence"
        },
        refused=in_callbacks(LOSS_INSIDE),
    ),
    invalid={
        "logits": NO_LOGITS,
        "teacher_logits": NO_LOGITS,
        "weights": (3, "x", [1.0], torch.ones(7)),
        "temperature": NO_POSITIVE,
        "cycle": (*NO_INTERVAL, None),
        "alpha": no_number(0, 1, -0.1, 1.1),
        "first_cycle": no_count(2),
    },
    overview=Overview(
        group=OPTIMIZATION,
        summary="distills the snapshot of the previous cycle",
        changes="the loss: the divergence from the last snapshot is added",
        cost="a forward pass more",
        evidence="paper: [Yang et al. 2019](https://arxiv.org/abs/1812.00123)",
        use_for="many epochs over little data, in cycles",
    ),
)
