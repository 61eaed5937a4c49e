"""Batches of similar length."""

import torch

import composable.functional as F
from tests.support.cases import COMPUTE, Case, FunctionCase, Overview
from tests.support.invalid import NO_TENSOR, no_count

CASE = Case(
    functions=[
        FunctionCase(
            F.group_by_length,
            needs={"batch_size": 2, "window": 2},
            arguments=lambda n: (torch.randint(1, 99, (n,)),),
        ),
    ],
    invalid={
        "lengths": (*NO_TENSOR, torch.zeros(2, 2)),
        "batch_size": no_count(1),
        "window": no_count(1),
    },
    overview=Overview(
        group=COMPUTE,
        summary="puts examples of similar length into the same batch",
        changes="batches: examples of similar length, so less padding",
        cost="as its share of padding",
        evidence="paper: [Khomenko et al. 2017](https://arxiv.org/abs/1708.05604)",
        use_for="sequences or images of different sizes that are padded, and can't be packed",
    ),
)
