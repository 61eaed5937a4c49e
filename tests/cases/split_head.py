"""Embedding and head that are tied at first and split later."""

import torch
from torch import nn

import composable.functional as F
from composable.algorithms import SplitHead
from tests.support.arguments import named
from tests.support.cases import ONE_FAILS, SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_GRADS, NO_TIME
from tests.support.meaning import surgery
from tests.support.runs import VISION
from tests.support.surgery import of_language_model


def two_gradients(size: int) -> tuple[dict[str, torch.Tensor]]:
    """Return gradients of two parameters of one shape."""
    (first,) = named(0)
    (second,) = named(1)
    return ({"words": first["weight"], "head": second["weight"], "bias": first["bias"]},)


CASE = Case(
    functions=[
        of_language_model(
            F.split_head,
            sought="a token embedding, and a head",
            removed=r"score\.weight",
            added=r"score\.weight",
        ),
        FunctionCase(
            F.tie_gradients,
            needs={"names": ["words", "head"]},
            arguments=two_gradients(1),
            invalid={"grads": NO_GRADS},
            invalid_sets=[
                ({"names": ["words"]}, r"names=\['words'\] must be two names"),
                ({"names": ["words", "bias"]}, "names must be of parameters of one shape"),
            ],
        ),
    ],
    algorithm=AlgorithmCase(
        SplitHead,
        {"split_at": ["0.5dur", "1ba"]},
        meaning=surgery(F.split_head, "split_at"),
        neutral="the head starts as a copy of the embedding",
        cannot={VISION: "images are not tokens"},
        order_matters={
            "GradientClipping": "the norm is computed before or after the two gradients are added",
            "Factorize": ("a factorized head has no weight of the shape of the words", ONE_FAILS),
        },
    ),
    invalid={
        "head": (3, nn.Linear),
        "names": (3, "x", [3], [], ["words", "words"]),
        "split_at": NO_TIME,
    },
    overview=Overview(
        group=SURGERY,
        summary="ties embedding and head at first, and splits them part of the way",
        changes="output layer: tied to the embedding, then split",
        cost="× 1.00, and the memory of a head",
        evidence="practice: [modded-nanogpt](https://github.com/KellerJordan/modded-nanogpt)",
        use_for="language models that are trained from scratch",
    ),
)
