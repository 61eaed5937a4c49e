"""Cautious weight decay."""

import composable.functional as F
from tests.support.arguments import named
from tests.support.cases import Case, FunctionCase
from tests.support.invalid import no_number

CASE = Case(
    functions=[FunctionCase(F.cautious_weight_decay, needs={"decay": 0.1}, arguments=named(0, 1))],
    invalid={"decay": no_number(-0.1, float("inf"))},
)
