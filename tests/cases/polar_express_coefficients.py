"""The coefficients of Polar Express."""

import composable.functional as F
from tests.support.cases import Case, FunctionCase
from tests.support.invalid import NO_SHARE, no_count, no_number

CASE = Case(
    functions=[
        FunctionCase(
            F.polar_express_coefficients,
            arguments={"steps": 3},
            no_row="it computes numbers, from numbers",
        )
    ],
    invalid={
        "steps": no_count(1),
        "lower": no_number(0, -1, 1.1),
        "safety": no_number(-0.1, float("inf")),
        "cushion": NO_SHARE,
    },
)
