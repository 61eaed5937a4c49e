"""Rotary position embeddings."""

import torch

import composable.functional as F
from composable.algorithms import Rotary
from tests.support.cases import BOTH_FAIL, SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_CLASS, NO_TENSOR, no_count, no_number
from tests.support.meaning import surgery
from tests.support.runs import VISION
from tests.support.surgery import POSITIONS, of_language_model


def heads(size: int) -> tuple[torch.Tensor]:
    """Return the queries of one head."""
    return (torch.randn(size, 8, 8),)


NO_TABLES = [((3, 2), (3, 1)), ((3, 3), (3, 3)), ((2, 1), (2, 1)), ((1, 3, 1), (1, 3, 1))]
TABLES = F.rotary_tables(torch.arange(8), 4)

CASE = Case(
    functions=[
        of_language_model(F.rotary, sought=POSITIONS, removed=r"places\.weight"),
        FunctionCase(
            F.rotary_embedding,
            arguments=heads,
            invalid={"inputs": (*NO_TENSOR, torch.zeros(4), torch.zeros(2, 2).long())},
            invalid_sets=[
                (
                    {"past": 1, "positions": torch.arange(8)},
                    "past=1 must be 0 if positions are pas",
                ),
                ({"positions": torch.arange(2)}, r"must broadcast to \(4, 8\), .* not \(2,\)"),
                ({"inputs": torch.zeros(3, 4).long()}, "must be queries or keys .*torch.int64"),
            ],
        ),
        FunctionCase(F.rotary_embedding, {"interleaved": True, "fraction": 0.5}, arguments=heads),
        FunctionCase(
            F.rotary_tables,
            arguments=(torch.arange(3), 4),
            invalid={"positions": NO_TENSOR},
            invalid_sets=[({"size": 3}, "size=3 must be even")],
        ),
        FunctionCase(
            F.rotate_pairs,
            arguments=heads,
            needs=dict(zip(("cos", "sin"), TABLES, strict=True)),
            invalid={"cos": NO_TENSOR, "sin": NO_TENSOR},
            invalid_sets=[
                (
                    {"inputs": torch.zeros(3, 4), "cos": torch.zeros(cos), "sin": torch.zeros(sin)},
                    "cos and sin must have one shape.* at most 2 pairs",
                )
                for cos, sin in NO_TABLES
            ],
        ),
        FunctionCase(
            F.register_rotary,
            arguments={"kinds": "some.module.Class"},
            invalid={"kinds": NO_CLASS},
            no_row="it adds to a registry, and computes nothing",
        ),
    ],
    algorithm=AlgorithmCase(
        Rotary,
        {"base": [10000.0, 100], "fraction": [1.0, 0.5], "interleaved": [False, True]},
        meaning=surgery(F.rotary),
        neutral="it replaces position embeddings",
        cannot={VISION: "images are not sequences of tokens"},
        order_matters={"Alibi": ("both replace the position embeddings", BOTH_FAIL)},
    ),
    invalid={
        "base": no_number(1, 0.5, -2),
        "fraction": no_number(-0.1, 1.1),
        "positions": (3, "x", [1.0]),
        "size": no_count(0),
    },
    overview=Overview(
        group=SURGERY,
        summary="replaces learned positions by rotations of queries and keys",
        changes="positions: rotations of queries and keys",
        cost="× 1.05",
        evidence="wide: [Su et al. 2021](https://arxiv.org/abs/2104.09864)",
        use_for="language models that are trained from scratch",
    ),
)
