"""Linear cross-entropy."""

import torch

import composable.functional as F
from tests.support.cases import COMPUTE, Case, FunctionCase, Overview
from tests.support.invalid import NO_SHARE, NO_TENSOR, no_count, no_word


def hidden_states(size: int) -> tuple[torch.Tensor, ...]:
    """Return hidden states, the weight of a head, and class indices."""
    return torch.randn(size, 4), torch.randn(3, 4), torch.arange(size) % 3


def losses(**options: object) -> FunctionCase:
    """Make a case with some options."""
    return FunctionCase(
        F.linear_cross_entropy,
        options,
        needs={"chunk_size": 2},
        arguments=hidden_states,
        expected_failures={
            "empty_batch": "the mean over no examples is NaN, as for PyTorch's own losses"
        }
        if "reduction" not in options
        else {},
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
        "ignore_index": (None, 0.5, True),
        "reduction": no_word(),
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
