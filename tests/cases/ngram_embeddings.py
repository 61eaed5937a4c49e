"""Hashed n-gram embeddings."""

import torch

import composable.functional as F
from composable.algorithms import NGramEmbeddings
from tests.support.cases import SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_FLAG, NO_POSITIVE, NO_TENSOR, no_count
from tests.support.meaning import surgery
from tests.support.runs import VISION
from tests.support.surgery import TOKENS, of_language_model

NO_DOCUMENTS = (3, "x", [1.0], torch.zeros(2).long())


def tokens(size: int) -> tuple[torch.Tensor]:
    """Return the tokens of a few rows."""
    return (torch.arange(6).expand(size, -1).contiguous(),)


def tokens_and_table(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens, and a table of eight rows."""
    return *tokens(size), torch.randn(8, 4)


CASE = Case(
    functions=[
        of_language_model(
            F.ngram_embeddings,
            needs={"rows": 16},
            sought=TOKENS,
            added=r"words\.ngrams\.weight",
            invalid_sets=[
                ({"rows": 10**6, "megabytes": 0.5}, "rows=1000000 must fit into megabytes=0.5"),
                ({"rows": None, "megabytes": 1e-6}, "must fit into megabytes=1e-06"),
            ],
        ),
        FunctionCase(
            F.hash_ngrams,
            needs={"rows": 8},
            arguments=tokens,
            invalid={"tokens": (*NO_TENSOR, torch.ones(3), torch.tensor(3)), "rows": no_count(1)},
        ),
        FunctionCase(
            F.embed_ngrams,
            arguments=tokens_and_table,
            invalid={
                "tokens": (*NO_TENSOR, torch.ones(3), torch.tensor(3)),
                "table": (*NO_TENSOR, torch.ones(3), torch.ones(3, 2).long()),
            },
        ),
    ],
    algorithm=AlgorithmCase(
        NGramEmbeddings,
        {"rows": [16, 5], "n": [3, 2, 4]},
        meaning=surgery(F.ngram_embeddings),
        neutral=NGramEmbeddings(rows=16),
        cannot={VISION: "images are not tokens"},
    ),
    invalid={
        "n": no_count(2),
        "rows": (0, 2.5, "3", True),
        "megabytes": NO_POSITIVE,
        "sparse": NO_FLAG,
        "document_ids": NO_DOCUMENTS,
    },
    overview=Overview(
        group=SURGERY,
        summary="adds a hashed embedding of the last tokens to each token",
        changes="token embeddings: a row of a table for each n-gram",
        cost="× 1.12 with a table of 64 MB",
        evidence="paper: [Huang et al. 2025](https://arxiv.org/abs/2501.16975)",
        use_for="language models with a small vocabulary, trained from scratch on much text",
    ),
)
