"""Prefix tokens."""

import torch

import composable.functional as F
from composable.algorithms import PrefixTokens
from tests.support.cases import (
    AUGMENTATION,
    BOTH_FAIL,
    MEAN_OF_NONE,
    AlgorithmCase,
    Case,
    FunctionCase,
    Overview,
)
from tests.support.invalid import NO_TENSOR, no_number

PREFIXES = F.prefix_tokens([b"a", b"ab", b"abc", b"b", b"ba", None, b"bab"])
NO_INDICES = (*NO_TENSOR, torch.zeros(3), torch.zeros(3) == 0)


def logits(size: int) -> tuple[torch.Tensor, ...]:
    """Return the logits of a few rows, and their targets."""
    return torch.randn(size, 7), torch.arange(size) % 7


def losses(**options: object) -> FunctionCase:
    """Make a case of the loss with some options."""
    return FunctionCase(
        F.prefix_token_loss,
        options,
        needs={"prefixes": PREFIXES},
        arguments=logits,
        invalid={
            "logits": (*NO_TENSOR, torch.zeros(3), torch.zeros(4, 7).long()),
            "prefixes": (*NO_INDICES, PREFIXES[:3], PREFIXES[None]),
            "targets": (*NO_INDICES, torch.zeros(3).long()),
            "weight": no_number(-0.1, float("inf")),
        },
        expected_failures={} if options else MEAN_OF_NONE,
    )


CASE = Case(
    functions=[
        losses(),
        losses(reduction="none", weight=1.0),
        FunctionCase(
            F.prefix_targets,
            needs={"prefixes": PREFIXES},
            arguments=lambda size: (torch.arange(size) % 2,),
            invalid={"prefixes": (*NO_INDICES, PREFIXES[None])},
        ),
        FunctionCase(
            F.prefix_tokens,
            arguments={"vocabulary": [b"a", b"ab"]},
            invalid={"vocabulary": (3, None, "words", b"words", ["a", b"b"], [1, 2])},
        ),
    ],
    algorithm=AlgorithmCase(
        PrefixTokens,
        {"prefixes": [PREFIXES], "weight": [0.25, 1.0], "end": [1.0, 2 / 3]},
        meaning=lambda a, s: {
            "batch": s.batch_spec.replace(
                s.batch,
                targets=F.MixedTargets(
                    s.targets,
                    F.prefix_targets(s.targets, a.prefixes),
                    torch.tensor(1 / (1 + a.weight * (1 - s.elapsed / a.end))),
                ),
            ),
        },
        order_matters={"MixUp CutMix": ("both give each example two targets", BOTH_FAIL)},
    ),
    invalid={
        "targets": NO_INDICES,
        "prefixes": (*NO_INDICES, PREFIXES[None]),
        "weight": no_number(-0.1, float("inf")),
        "end": no_number(0, 1.1, -1),
    },
    overview=Overview(
        group=AUGMENTATION,
        summary="predicts the longest proper prefix of each target token, too",
        changes="the loss: the loss of prefixes is added",
        cost="× 1.3 of the loss alone",
        evidence="practice: [modded-nanogpt](https://github.com/KellerJordan/modded-nanogpt/pull/337)",
        use_for="language models of byte-level BPE tokens",
    ),
)
