"""The step of schedule-free optimizers."""

import composable.functional as F
from tests.support.arguments import named
from tests.support.cases import Case, FunctionCase
from tests.support.invalid import NO_SHARE, NO_TENSORS, no_number

CASE = Case(
    functions=[
        FunctionCase(
            F.schedule_free_step,
            needs={"lr": 0.5, "weight": 0.25},
            arguments=named(0, 1, 2),
            invalid={"updates": NO_TENSORS, "lr": no_number(-0.1, float("inf"))},
        ),
        FunctionCase(F.schedule_free_average, arguments=named(0, 1)),
    ],
    invalid={
        "training": NO_TENSORS,
        "base": NO_TENSORS,
        "weight": NO_SHARE,
        "momentum": no_number(0, -0.1, 1.1),
    },
)
