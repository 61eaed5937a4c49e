"""Dropout rates."""

from functools import partial

from torch import nn

import composable.functional as F
from composable.algorithms import Dropout
from tests.cases.stochastic_depth import LIKE_DROPOUT
from tests.support.arguments import model_of
from tests.support.cases import SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.meaning import surgery

CASE = Case(
    functions=[
        FunctionCase(
            F.set_dropout,
            arguments=model_of(partial(nn.Conv2d, 3, 3, 1), nn.Dropout),
            expected_failures=LIKE_DROPOUT,
        )
    ],
    algorithm=AlgorithmCase(
        Dropout,
        {"p": [0.5, 0.1]},
        meaning=surgery(F.set_dropout),
        neutral="the rates of a model may differ",
        sees_microbatches="it draws for each",
    ),
    overview=Overview(
        group=SURGERY,
        summary="sets the rates of all dropouts of a model",
        changes="dropout: its rate",
        cost="none",
        evidence="wide: [Srivastava et al. 2014](https://jmlr.org/papers/v15/srivastava14a.html)",
        use_for="models that overfit, such as in many epochs over little data",
    ),
)
