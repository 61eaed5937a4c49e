"""Test-time augmentation."""

import torch

import composable.functional as F
from composable import Event
from composable.algorithms import TTA
from tests.support.arguments import images
from tests.support.cases import OPTIMIZATION, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.integrations import EVALUATED_BATCHES, everywhere
from tests.support.invalid import NO_FLAG, NO_IMAGES, NO_TENSOR, no_count, no_word
from tests.support.meaning import hyperparameters_of
from tests.support.runs import LANGUAGE


def means(inputs: torch.Tensor) -> torch.Tensor:
    """Return a logit for each channel."""
    return inputs.mean((2, 3))


CASE = Case(
    functions=[
        FunctionCase(
            F.tta,
            arguments=lambda n: (means, images(n)),
            invalid={"inputs": NO_IMAGES, "shift": (8,)},
        ),
        FunctionCase(F.tta_views, invalid={"inputs": NO_IMAGES, "shift": (8,)}),
        FunctionCase(F.average_tta, arguments=lambda n: (torch.rand(6 * n, 3),)),
        FunctionCase(
            F.average_tta,
            {"average": "probabilities"},
            arguments=lambda n: (torch.rand(6 * n, 3),),
        ),
    ],
    algorithm=AlgorithmCase(
        TTA,
        {"flip": [True, False], "shift": [1, 0], "average": ["logits", "probabilities"]},
        meaning=lambda a, s: {
            "batch": (F.tta_views(s.inputs, **hyperparameters_of(a, "average")), s.targets)
        },
        acts_at=lambda a: Event.EVAL_BEFORE_FORWARD,
        cannot={LANGUAGE: "token ids are not images"},
        refused=everywhere(EVALUATED_BATCHES),
    ),
    invalid={
        "model": (3, None, "x"),
        "outputs": (*NO_TENSOR, torch.zeros(7, 3), torch.zeros(6, 3, 2), torch.zeros(6, 3).long()),
        "flip": NO_FLAG,
        "shift": no_count(0),
        "average": no_word(),
    },
    overview=Overview(
        group=OPTIMIZATION,
        summary="evaluates images with test-time augmentation",
        changes="evaluations: outputs averaged over views of each image",
        cost="nothing in training",
        evidence="wide: [Krizhevsky et al. 2012](https://papers.nips.cc/paper/4824), "
        "[Jordan 2024](https://arxiv.org/abs/2404.00498)",
        use_for="image classifiers, where an evaluation may cost several times as much",
    ),
)
