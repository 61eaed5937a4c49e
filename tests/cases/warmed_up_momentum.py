"""Momentum warm-up."""

import composable.functional as F
from tests.support.cases import Case, FunctionCase
from tests.support.invalid import no_count, no_number

NO_MOMENTUM = no_number(-0.1, 1)

CASE = Case(
    functions=[
        FunctionCase(
            F.warmed_up_momentum,
            arguments=(3,),
            invalid_sets=[({"start": 0.9, "end": 0.5}, "start=0.9 must be at most end=0.5")],
        )
    ],
    invalid={
        "step": no_count(0),
        "start": NO_MOMENTUM,
        "end": NO_MOMENTUM,
        "num_steps": no_count(0),
    },
)
