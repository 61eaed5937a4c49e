"""Gated linear units."""

from functools import partial

import torch
from torch import nn

import composable.functional as F
from composable.algorithms import GatedLinearUnits
from tests.support.arguments import model_of, rows
from tests.support.cases import SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_CLASS
from tests.support.meaning import drawn_surgery
from tests.support.runs import VISION
from tests.support.surgery import FEED_FORWARD, FeedForward

CASE = Case(
    functions=[
        FunctionCase(
            F.gated_linear_units,
            arguments=model_of(FeedForward, FeedForward),
            inputs=rows(5, 4),
            sought=FEED_FORWARD,
            lazy=partial(FeedForward, lazy=True),
            removed=r"\d\.up\.bias",
            added=r"\d\.up\.non_gated\.weight",
        ),
        FunctionCase(
            F.register_gated_linear_units,
            arguments={"kind": "some.module.Class", "linear": "up", "activation": "act"},
            invalid={"kind": NO_CLASS, "linear": (3, None, ""), "activation": (3, None, "")},
            no_row="it adds to a registry, and computes nothing",
        ),
    ],
    algorithm=AlgorithmCase(
        GatedLinearUnits,
        {
            "gated_layer_bias": [True, False],
            "non_gated_layer_bias": [True, False],
            "act_fn": [None, torch.tanh],
        },
        meaning=drawn_surgery(F.gated_linear_units),
        neutral="its gate multiplies by a new layer, whose weights are drawn",
        cannot={VISION: "it has no feed-forward block"},
        external={"gated_layer_bias": False, "non_gated_layer_bias": False},
    ),
    invalid={
        "act_fn": (3, "gelu", nn.GELU),
    },
    overview=Overview(
        group=SURGERY,
        summary="adds gated linear units (GLU) to feed-forward blocks",
        changes="feed-forward blocks: gated linear units",
        cost="× 1.29; × 0.95 at two thirds of the width",
        evidence="wide: [Shazeer 2020](https://arxiv.org/abs/2002.05202)",
        use_for="transformers that are trained from scratch",
    ),
)
