"""Stochastic weight averaging."""

from collections.abc import Mapping
from functools import partial
from math import nan
from typing import Any

from torch import nn

import composable.functional as F
from composable import Event, State
from composable.algorithms import SWA
from tests.support.arguments import images, model_of, named
from tests.support.cases import BOTH_FAIL, OPTIMIZATION, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.integrations import LATE_STATISTICS, in_callbacks
from tests.support.invalid import NO_INTERVAL, NO_TIME, no_count


def run_mean(a: Any, s: State) -> Mapping[str, Any]:
    """Update the mean."""
    average = s.averages[a.name]
    mean = F.swa(average, a.weights_of(s), s.memory[a.name]["count"])
    return {"averages": {a.name: mean}, "memory": {a.name: {"count": 2, "seen": 0}}}


CASE = Case(
    functions=[
        FunctionCase(
            F.swa,
            needs={"count": 2},
            arguments=named(0, 1),
            expected_failures={"gradients": "the average is detached from the autograd graph"},
        ),
        FunctionCase(F.batch_norm_statistics, arguments=model_of(partial(nn.BatchNorm2d, 3))),
        FunctionCase(
            F.reset_batch_norm_statistics,
            arguments=model_of(partial(nn.BatchNorm2d, 3)),
        ),
        FunctionCase(
            F.recompute_batch_norm_statistics,
            arguments=lambda n: (nn.Sequential(nn.BatchNorm2d(3)), [images(n), images(n)]),
            invalid={"batches": (3, None, []), "seen": no_count(0)},
        ),
    ],
    algorithm=AlgorithmCase(
        SWA,
        {
            "swa_start": ["0dur", "2ba", "0.3dur"],
            "swa_end": ["0.7dur", "1dur"],
            "update_interval": ["1ba", "2ba", "1ep"],
            "schedule_swa_lr": [True],
            "anneal_strategy": ["linear", "cos"],
            "anneal_steps": [2, 0],
            "swa_lr": [0.02],
        },
        meaning=run_mean,
        acts_at=lambda a: Event.EPOCH_END if a.by_epoch else Event.BATCH_END,
        memory={"count": 1, "seen": 0},
        invalid_sets=[
            ({"swa_start": "0.98dur"}, "swa_end='0.97dur' must be after swa_start"),
            ({"swa_start": "3ep", "swa_end": "3ep"}, "swa_end='3ep' must be after"),
            (
                {"schedule_swa_lr": True},
                "schedule_swa_lr=True and swa_lr=None must be given together",
            ),
            (
                {"swa_lr": 0.1},
                "schedule_swa_lr=False and swa_lr=0.1 must be given together; .*neither",
            ),
            ({"schedule_swa_lr": 1, "swa_lr": 0.1}, "schedule_swa_lr=1 must be True or False"),
            ({"schedule_swa_lr": True, "swa_lr": 0}, "swa_lr=0 must be greater than 0"),
            ({"schedule_swa_lr": True, "swa_lr": nan}, "swa_lr=nan must be greater than 0"),
            ({"schedule_swa_lr": True, "swa_lr": "0.1"}, "swa_lr='0.1' must be a number"),
        ],
        order_matters={"EMA": ("both replace the weights used for evaluation", BOTH_FAIL)},
        refused=in_callbacks(LATE_STATISTICS),
        external={
            "swa_start": "1ba",
            "swa_end": "4ba",
            "schedule_swa_lr": False,
            "swa_lr": None,
        },
    ),
    invalid={
        "count": no_count(0),
        "swa_start": NO_TIME,
        "swa_end": NO_TIME,
        "update_interval": (*NO_INTERVAL, None),
        "anneal_steps": no_count(0),
        "swa_lr": ("x", -0.1, nan, True),
    },
    overview=Overview(
        group=OPTIMIZATION,
        summary="evaluates the mean of the weights from late in training",
        changes="the weights that are evaluated: a mean of late ones",
        cost="+0.3 % at an update",
        evidence="wide: [Izmailov et al. 2018](https://arxiv.org/abs/1803.05407)",
        use_for="a learning rate that stays high to the end",
    ),
)
