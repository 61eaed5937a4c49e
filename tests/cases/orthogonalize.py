"""Orthogonalization, the function of Muon."""

import torch

import composable.functional as F
from tests.support.arguments import seeded
from tests.support.cases import Case, FunctionCase
from tests.support.invalid import NO_POSITIVE, NO_TENSOR, no_count


def matrices(size):
    """Make a batch of matrices."""
    return (torch.randn(size, 6, 4, generator=seeded()),)


CASE = Case(
    functions=[
        FunctionCase(
            F.orthogonalize,
            arguments=matrices,
            expected_failures={
                "vmap": "works, but rounds otherwise: intermediate results are in bfloat16",
                "gradients": "computed in bfloat16, and so they differ from finite differences",
            },
        ),
        FunctionCase(F.orthogonalize, {"dtype": torch.float64}, arguments=matrices),
    ],
    invalid={
        "matrices": (*NO_TENSOR, torch.zeros(4), torch.zeros(2, 2).long()),
        "steps": no_count(0),
        "coefficients": (3, "x", None, (1.0, 2.0), (1.0, 2.0, "x")),
        "eps": NO_POSITIVE,
    },
)
