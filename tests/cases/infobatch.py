"""InfoBatch."""

import torch

import composable.functional as F
from tests.support.cases import COMPUTE, Case, FunctionCase, Overview
from tests.support.invalid import NO_PROBABILITY_BELOW_ONE, NO_TENSOR


def losses(size: int) -> tuple[torch.Tensor]:
    """Return the losses of some examples."""
    return (torch.rand(size),)


STEPS = "the weights are one of two constants"

CASE = Case(
    functions=[
        FunctionCase(F.infobatch, arguments=losses, expected_failures={"gradients": STEPS}),
        FunctionCase(F.draw_infobatch),
        FunctionCase(
            F.apply_infobatch,
            arguments=lambda n: (torch.rand(n), torch.arange(n) % 2 == 0),
            invalid={"draw": NO_TENSOR},
            expected_failures={"gradients": STEPS},
        ),
    ],
    invalid={
        "losses": (*NO_TENSOR, torch.zeros(2, 2), torch.zeros(3).long()),
        "prune": NO_PROBABILITY_BELOW_ONE,
    },
    overview=Overview(
        group=COMPUTE,
        summary="prunes examples with a low loss, without a bias of the gradient",
        changes="epochs: fewer examples with a low loss, of larger weight",
        cost="not measured",
        evidence="paper: [Qin et al. 2023](https://arxiv.org/abs/2303.04947)",
        use_for="runs of many epochs in which many examples are learned early",
    ),
)
