"""Gyro dropout."""

from functools import partial

from torch import nn

import composable.functional as F
from composable.algorithms import GyroDropout
from tests.support.arguments import model_of
from tests.support.cases import SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import no_count
from tests.support.meaning import drawn_surgery

CASE = Case(
    functions=[
        FunctionCase(
            F.gyro_dropout,
            needs={"iters_per_epoch": 5, "max_epoch": 2, "sigma": 4, "tau": 2},
            arguments=model_of(partial(nn.Conv2d, 3, 3, 1), nn.Dropout),
            sought="Dropout",
            added=r"1\.(seed|steps)",
            invalid_sets=[({"sigma": 4, "tau": 5}, "tau=5 must be at most sigma=4")],
        )
    ],
    algorithm=AlgorithmCase(
        GyroDropout,
        {"sigma": [4, 8], "tau": [2, 1]},
        meaning=drawn_surgery(F.gyro_dropout, iters_per_epoch=1, max_epoch=4),
        invalid_sets=[({"sigma": 4, "tau": 5}, "tau=5 must be at most sigma=4")],
        neutral=GyroDropout(p=0.0),
        sees_microbatches="each of them counts as a step, and has masks of its own",
        alone="it needs a length of the run in batches or epochs, which not every run has",
        # Its masks are spread over the batches: an external loop must say how many there are.
        external_options={"max_duration": "6ba"},
    ),
    invalid={
        "sigma": no_count(1),
        "tau": no_count(1),
        "iters_per_epoch": no_count(1),
        "max_epoch": no_count(1),
    },
    overview=Overview(
        group=SURGERY,
        summary="dropout with a fixed pool of reused masks",
        changes="dropout: a fixed pool of reused masks",
        cost="× 0.23 of the dropout",
        evidence="paper: Lee et al. 2022",
        use_for="where dropout helps",
    ),
)
