"""Linear cross-entropy."""

import torch

import composable.functional as F
from tests.support.cases import COMPUTE, MEAN_OF_NONE, Case, FunctionCase, Overview
from tests.support.invalid import NO_SHARE, NO_TENSOR, no_count


def hidden_states(size: int) -> tuple[torch.Tensor, ...]:
    """Return hidden states, the weight of a head, and class indices."""
    return torch.randn(size, 4), torch.randn(3, 4), torch.arange(size) % 3


NOT_MATCHING = [
    ({"inputs": torch.zeros(3)}, r"inputs must be \[..., features\], .* inputs \(3,\)"),
    ({"weight": torch.zeros(2, 5)}, r"weight \(2, 5\)"),
    ({"targets": torch.zeros(3, 1).long()}, r"targets \(3, 1\)"),
    ({"bias": torch.zeros(2)}, r"bias \(2,\)"),
    ({"targets": torch.zeros(4)}, "targets must be class indices of an integer dtype"),
    ({"weight": torch.zeros(3, 4).long()}, "weight must have a floating-point dtype"),
]


def losses(**options: object) -> FunctionCase:
    """Make a case with some options."""
    return FunctionCase(
        F.linear_cross_entropy,
        options,
        needs={"chunk_size": 2},
        arguments=hidden_states,
        invalid_sets=NOT_MATCHING,
        expected_failures={} if "reduction" in options else MEAN_OF_NONE,
    )


CASE = Case(
    functions=[
        losses(),
        losses(reduction="none", label_smoothing=0.1),
        losses(reduction="sum", softcap=2.0),
    ],
    invalid={
        "weight": NO_TENSOR,
        "targets": (*NO_TENSOR, torch.zeros(4, 4)),
        "bias": (3, "x", [1.0]),
        "label_smoothing": NO_SHARE,
        "softcap": (0, -1.0, float("inf"), float("nan"), "30", True),
        "chunk_size": no_count(1),
    },
    overview=Overview(
        group=COMPUTE,
        summary="computes the loss of a large vocabulary without all logits",
        changes="nothing: the same loss, in less memory",
        cost="× 1.03 for the loss alone",
        evidence="paper: [Wijmans et al. 2025](https://arxiv.org/abs/2411.09009)",
        use_for="language models whose logits take the most memory",
    ),
)
