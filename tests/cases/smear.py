"""Smear."""

import torch

import composable.functional as F
from composable.algorithms import Smear
from tests.support.cases import SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_TENSOR
from tests.support.meaning import surgery
from tests.support.runs import VISION
from tests.support.surgery import TOKENS, of_language_model


def smeared(size: int) -> tuple[torch.Tensor, ...]:
    """Return embeddings of a few rows, a gate of two channels, and a scale."""
    return torch.randn(size, 6, 4), torch.randn(2), torch.randn(1)


CASE = Case(
    functions=[
        of_language_model(
            F.smear,
            needs={"channels": 4},
            sought=TOKENS,
            added=r"words\.smear_(gate|scale)",
            invalid_sets=[({"channels": 9}, "channels=9 must be at most 8, the width of words")],
        ),
        FunctionCase(
            F.smear_tokens,
            arguments=smeared,
            invalid={
                "inputs": (*NO_TENSOR, torch.ones(3), torch.ones(2, 3).long()),
                "gate": (*NO_TENSOR, torch.ones(5), torch.ones(0), torch.ones(1, 1)),
                "scale": (*NO_TENSOR, torch.ones(2)),
            },
        ),
    ],
    algorithm=AlgorithmCase(
        Smear,
        {"channels": [4, 8]},
        meaning=surgery(F.smear),
        neutral=Smear(channels=4),
        cannot={VISION: "images are not tokens"},
        order_matters={"NGramEmbeddings": "the embeddings are smeared with or without n-grams"},
        external={"channels": 2},
    ),
    invalid={"document_ids": (3, "x", [1.0], torch.zeros(2).long())},
    overview=Overview(
        group=SURGERY,
        summary="adds a gated share of the previous token's embedding to each token",
        changes="token embeddings: a gated share of the previous one",
        cost="× 1.00",
        evidence="practice: [modded-nanogpt](https://github.com/KellerJordan/modded-nanogpt)",
        use_for="causal language models",
    ),
)
