"""Squared ReLU."""

from torch import nn

import composable.functional as F
from composable.algorithms import SquaredReLUs
from tests.support.arguments import model_of, rows
from tests.support.cases import SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_SHARE
from tests.support.meaning import surgery
from tests.support.runs import VISION
from tests.support.surgery import FEED_FORWARD, FeedForward

CASE = Case(
    functions=[
        FunctionCase(
            F.squared_relu,
            arguments=model_of(FeedForward, FeedForward),
            inputs=rows(5, 4),
            sought=FEED_FORWARD,
        ),
    ],
    algorithm=AlgorithmCase(
        SquaredReLUs,
        {"slope": [0.0, 0.5], "target": [None]},
        meaning=surgery(F.squared_relu),
        neutral="it computes another function",
        cannot={VISION: "it has no feed-forward block"},
    ),
    invalid={"slope": NO_SHARE, "target": (3, "GELU", nn.GELU(), int)},
    overview=Overview(
        group=SURGERY,
        summary="squares the rectified activations of feed-forward blocks",
        changes="feed-forward blocks: squared ReLU",
        cost="× 0.86",
        evidence="wide: [So et al. 2021](https://arxiv.org/abs/2109.08668)",
        use_for="transformers that are trained from scratch",
    ),
)
