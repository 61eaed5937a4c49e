"""Ghost batch normalization."""

from functools import partial

from torch import nn

import composable.functional as F
from composable.algorithms import GhostBatchNorm
from tests.support.arguments import model_of
from tests.support.cases import SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import no_count
from tests.support.meaning import surgery
from tests.support.runs import LANGUAGE

CASE = Case(
    functions=[
        FunctionCase(
            F.ghost_batchnorm,
            needs={"ghost_batch_size": 2},
            arguments=model_of(partial(nn.Conv2d, 3, 4, 1), partial(nn.BatchNorm2d, 4)),
            sought="BatchNorm1d, BatchNorm2d and BatchNorm3d",
            lazy=nn.LazyBatchNorm2d,
        ),
        FunctionCase(
            F.ghost_batchnorm,
            of="norms without statistics",
            needs={"ghost_batch_size": 2},
            arguments=model_of(partial(nn.BatchNorm2d, 3, track_running_stats=False)),
        ),
    ],
    algorithm=AlgorithmCase(
        GhostBatchNorm,
        {"ghost_batch_size": [2, 3]},
        meaning=surgery(F.ghost_batchnorm),
        neutral=GhostBatchNorm(ghost_batch_size=100),
        cannot={LANGUAGE: "it has no batch norm"},
        sees_microbatches="it takes statistics of parts of each",
    ),
    invalid={"ghost_batch_size": no_count(1)},
    overview=Overview(
        group=SURGERY,
        summary="normalizes slices of the batch separately",
        changes="batch norms: statistics of slices of the batch",
        cost="× 1.25",
        evidence="paper: [Hoffer et al. 2017](https://arxiv.org/abs/1705.08741)",
        use_for="large batches that generalize worse than small ones",
    ),
)
