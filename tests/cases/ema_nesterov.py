"""The step of EMA-Nesterov."""

import composable.functional as F
from tests.support.arguments import named
from tests.support.cases import Case, FunctionCase
from tests.support.invalid import NO_SHARE, NO_TENSORS, no_number

NO_FINITE = no_number(float("inf"), -float("inf"))

CASE = Case(
    functions=[
        FunctionCase(
            F.ema_nesterov_step,
            needs={"lookahead": 0.6, "last_lookahead": 0.3},
            arguments=named(0, 1, 2),
        )
    ],
    invalid={
        "average": NO_TENSORS,
        "lookahead": NO_FINITE,
        "last_lookahead": NO_FINITE,
        "decay": NO_SHARE,
    },
)
