"""Soft-capped logits."""

import torch

import composable.functional as F
from composable.algorithms import SoftcapLogits
from tests.support.cases import SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_POSITIVE, NO_TENSOR
from tests.support.meaning import surgery
from tests.support.surgery import HEAD, of_language_model


def logits(size: int) -> tuple[torch.Tensor]:
    """Return the logits of a few rows."""
    return (torch.randn(size, 5),)


CASE = Case(
    functions=[
        FunctionCase(
            F.softcap_logits,
            arguments=logits,
            invalid={"logits": (*NO_TENSOR, torch.zeros(3).long())},
        ),
        of_language_model(F.softcap_head, sought=HEAD),
    ],
    algorithm=AlgorithmCase(
        SoftcapLogits,
        {"cap": [1.0, 30.0]},
        meaning=surgery(F.softcap_head),
        order_matters={
            "Factorize": "only plain layers are factorized, and not a head with a bound"
        },
        neutral="it bounds all logits, small ones a little",
    ),
    invalid={"cap": NO_POSITIVE},
    overview=Overview(
        group=SURGERY,
        summary="bounds the logits of the head by a hyperbolic tangent",
        changes="logits: within a bound",
        cost="× 2.8 of the loss alone",
        evidence="practice: [Gemma 2](https://arxiv.org/abs/2408.00118)",
        use_for="language models whose logits grow without bound; not for a gain in speed",
    ),
)
