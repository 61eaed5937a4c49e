"""Cached gradients: any loss of a whole batch, a part at a time."""

from typing import Any

import torch
from torch import Tensor, nn

import composable.functional as F
from composable import Event
from composable._support.tree import map_tensors
from composable.algorithms import WholeLoss
from tests.support.cases import COMPUTE, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.integrations import SECOND_FORWARD, everywhere
from tests.support.invalid import NO_TENSORS

NO_FUNCTION = (3, "x", None)


def contrast(outputs: Tensor) -> Tensor:
    """Compare each example with all others."""
    return (outputs @ outputs.T).logsumexp(1).mean()


def arguments(size: int) -> dict[str, Any]:
    """Return a model and a batch in two parts, or one."""
    model = nn.Linear(3, 2)
    return {
        "forward": model,
        "parts": list(torch.randn(size, 3).chunk(2)),
        "loss_fn": contrast,
        "params": dict(model.named_parameters()),
    }


def halved(outputs: Any) -> Any:
    """Halve the outputs of a model: another loss, in any split."""
    return map_tensors(lambda tensor: tensor / 2, outputs)


CASE = Case(
    functions=[
        FunctionCase(
            F.cached_gradients,
            arguments=arguments,
            invalid_sets=[
                *(
                    ({"forward": forward, "parts": torch.zeros(3, 3).split([1, 2])}, message)
                    for forward, message in [
                        (lambda part: "nothing", "forward must return a tensor"),
                        (lambda part: part.sum(), "a row for each example"),
                        (lambda part: part[:, : len(part)], "equal in dtype and in all other"),
                        (lambda part: [part] * len(part), "the same number of tensors"),
                    ]
                ),
                ({"loss_fn": lambda outputs: outputs}, r"loss_fn must return .* shape \(4, 2\)"),
            ],
            no_row="it calls two functions of the user, and has their properties",
        )
    ],
    algorithm=AlgorithmCase(
        WholeLoss,
        {"outputs": [halved, None]},
        meaning=lambda a, s: {"whole_loss": True},
        acts_at=lambda a: Event.BEFORE_TRAIN_BATCH,
        neutral="it replaces no module",
        refused=everywhere(SECOND_FORWARD),
    ),
    invalid={
        "forward": NO_FUNCTION,
        "parts": (3, None, [], ()),
        "loss_fn": NO_FUNCTION,
        "params": NO_TENSORS,
        "outputs": (3, "logits"),
    },
    overview=Overview(
        group=COMPUTE,
        summary="computes any loss of a whole batch, such as a contrastive one, in parts",
        changes="nothing: the loss of the whole batch, in the memory of a part",
        cost="× 1.24 of the unsplit batch",
        evidence="paper: [Gao et al. 2021](https://arxiv.org/abs/2101.06983)",
        use_for="contrastive and other losses that compare examples, in batches beyond the memory",
    ),
)
