"""Exponential moving average of the weights."""

from collections.abc import Mapping
from math import nan
from typing import Any

import torch

import composable.functional as F
from composable import State
from composable.algorithms import EMA
from composable.testing.problems import feature_maps
from tests.support.arguments import named
from tests.support.cases import OPTIMIZATION, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.integrations import NO_EVALUATION_CALLBACK
from tests.support.invalid import (
    NO_INTERVAL,
    NO_POSITIVE,
    NO_SCALE,
    NO_SHARE,
    NO_TENSORS,
    NO_TIME,
)


def averaged(a: Any, s: State) -> Mapping[str, Any]:
    """Update the average."""
    average = s.averages[a.name]
    return {"averages": {a.name: F.ema(average, a.weights_of(s), smoothing=a.share_kept)}}


CASE = Case(
    functions=[
        FunctionCase(
            F.ema,
            needs={"smoothing": 0.9},
            arguments=named(0, 1),
            invalid={"smoothing": NO_SHARE},
            expected_failures={"gradients": "the average is detached from the autograd graph"},
        ),
        FunctionCase(
            F.with_tensors,
            arguments=lambda n: (feature_maps(), {"0.bias": torch.zeros(16)}),
            invalid={"tensors": NO_TENSORS},
        ),
        FunctionCase(
            F.ema_smoothing,
            arguments=(100.0,),
            invalid={"half_life": NO_POSITIVE, "update_interval": NO_POSITIVE},
        ),
    ],
    algorithm=AlgorithmCase(
        EMA,
        {
            "half_life": ["2ba", "1ba", "1ep"],
            "ema_start": ["0dur", "3ba", "0.5dur"],
            "blend": [1.0, 0.6],
        },
        meaning=averaged,
        invalid_sets=[
            (
                {"half_life": "10ba", "smoothing": 0.9},
                "half_life='10ba' and smoothing=0.9 must not both be given",
            ),
            (
                {"half_life": "10ba", "update_interval": "1ep"},
                "must have the same unit, batches or",
            ),
            (
                {"half_life": None, "smoothing": 0.9, "update_interval": "1sp"},
                "update_interval='1sp' must be .* in batches or epochs, such as '1ba'",
            ),
            ({"half_life": None, "smoothing": 1.5}, r"smoothing=1.5 must be in \[0, 1\]"),
            ({"half_life": None, "smoothing": "1"}, "smoothing='1' must be a number"),
        ],
        refused={"HF, callback": NO_EVALUATION_CALLBACK},
    ),
    invalid={
        "half_life": (*NO_INTERVAL, "-1ba"),
        "smoothing": (-0.1, 1.1, nan, "x", True),
        "ema_start": NO_TIME,
        "update_interval": NO_INTERVAL,
        "blend": NO_SCALE,
    },
    overview=Overview(
        group=OPTIMIZATION,
        summary="evaluates an exponential moving average of the weights",
        changes="the weights that are evaluated: a moving average",
        cost="+0.1 %",
        evidence="wide: [Tarvainen and Valpola 2017](https://arxiv.org/abs/1703.01780)",
        use_for="evaluation before the learning rate has decayed",
    ),
)
