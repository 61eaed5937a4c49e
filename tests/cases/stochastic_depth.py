"""Stochastic depth."""

from torch import nn

import composable.functional as F
from composable.algorithms import StochasticDepth
from tests.support.arguments import Block, model_of
from tests.support.cases import SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_BLOCK, NO_SHARE, NO_TIME
from tests.support.meaning import surgery
from tests.support.runs import LANGUAGE

LIKE_DROPOUT = {
    "global_generators": (
        "the layers draw from PyTorch's global generators at each step, like dropout; with another "
        "generator, activation checkpointing would draw again, and `torch.compile` break the graph"
    )
}

CASE = Case(
    functions=[
        *(
            FunctionCase(
                F.stochastic_depth,
                {"method": method},
                needs={"target": Block},
                arguments=model_of(Block, Block),
                sought="blocks of the classes .*Block",
                expected_failures=LIKE_DROPOUT,
            )
            for method in ("block", "sample")
        ),
        FunctionCase(
            F.scale_drop_rates,
            needs={"scale": 0.5},
            arguments=lambda n: (F.stochastic_depth(nn.Sequential(Block()), target=Block),),
            invalid={"scale": NO_SHARE},
            expected_failures=LIKE_DROPOUT,
        ),
    ],
    algorithm=AlgorithmCase(
        StochasticDepth,
        {"target": [nn.ReLU], "drop_rate": [0.5], "method": ["block", "sample"]},
        meaning=surgery(F.stochastic_depth, "drop_warmup"),
        neutral=StochasticDepth(target=nn.ReLU, drop_rate=0.0),
        cannot={LANGUAGE: "it has no such block"},
        sees_microbatches="it draws for each",
        external={"target": nn.BatchNorm2d},
    ),
    invalid={
        "target": NO_BLOCK,
        "drop_rate": NO_SHARE,
        "drop_warmup": NO_TIME,
    },
    overview=Overview(
        group=SURGERY,
        summary="skips residual blocks at random",
        changes="residual blocks: skipped at random",
        cost="× 0.8 with half of the blocks",
        evidence="wide: [Huang et al. 2016](https://arxiv.org/abs/1603.09382)",
        use_for="deep residual networks and transformers",
    ),
)
