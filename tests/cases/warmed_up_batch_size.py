"""Batch-size warm-up."""

import composable.functional as F
from tests.support.cases import COMPUTE, Case, FunctionCase, Overview
from tests.support.invalid import no_count

CASE = Case(
    functions=[
        FunctionCase(
            F.warmed_up_batch_size,
            needs={"duration": 80, "min_batch_size": 8, "max_batch_size": 32},
            arguments=(10,),
            invalid_sets=[
                ({"max_batch_size": 7}, "min_batch_size=8 must be at most max_batch_size=7")
            ],
        ),
    ],
    invalid={
        "samples": no_count(0),
        "duration": no_count(0),
        "min_batch_size": no_count(1),
        "max_batch_size": no_count(1),
        "step_size": no_count(1),
    },
    overview=Overview(
        group=COMPUTE,
        summary="trains on small batches first",
        changes="batches: small ones first",
        cost="× 1.07 for the same examples",
        evidence="paper: [Smith et al. 2018](https://arxiv.org/abs/1711.00489)",
        use_for="large batches that help only late in training",
    ),
)
