"""Sequence length warmup."""

from collections.abc import Mapping
from typing import Any

import composable.functional as F
from composable import State
from composable.algorithms import SeqLengthWarmup
from tests.support.arguments import texts
from tests.support.cases import COMPUTE, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_SHARE, no_count
from tests.support.meaning import hyperparameters_of
from tests.support.runs import VISION


def shortened(a: Any, s: State) -> Mapping[str, Any]:
    """Set the sequence length to that of the time."""
    how = ("truncate", "preserve_end_of_sequence")
    length = F.warmed_up_length(s.elapsed, **hyperparameters_of(a, *how))
    options = {name: getattr(a, name) for name in how}
    return {"batch": F.set_sequence_length(s.batch, length, **options)}


def shorten(**options: bool) -> FunctionCase:
    """Make a case of `set_sequence_length` with some options."""
    return FunctionCase(
        F.set_sequence_length,
        options,
        needs={"length": 3},
        arguments=texts,
        invalid={"batch": (3, "x", None), "length": no_count(1), "labels": ("labels", 1)},
    )


CASE = Case(
    functions=[
        shorten(),
        shorten(preserve_end_of_sequence=True),
        shorten(truncate=False),
        FunctionCase(
            F.warmed_up_length,
            arguments=(0.1,),
            invalid_sets=[
                ({"max_seq_length": 7}, "min_seq_length=8 must be at most max_seq_length=7")
            ],
        ),
        FunctionCase(F.sequence_length, arguments=texts, invalid={"batch": (3, "x", None, {})}),
    ],
    algorithm=AlgorithmCase(
        SeqLengthWarmup,
        {
            "duration": [0.5, 1.0],
            "min_seq_length": [2, 1],
            "max_seq_length": [5, 4],
            "step_size": [1, 2],
        },
        meaning=shortened,
        invalid_sets=[
            ({"max_seq_length": 7}, "min_seq_length=8 must be at most max_seq_length=7"),
        ],
        cannot={VISION: "images are not sequences of tokens"},
        external={"min_seq_length": 4, "max_seq_length": 16, "step_size": 2},
    ),
    invalid={
        "duration": NO_SHARE,
        "min_seq_length": no_count(1),
        "max_seq_length": no_count(1),
        "step_size": no_count(1),
    },
    overview=Overview(
        group=COMPUTE,
        summary="trains on short sequences first",
        changes="sequences: short ones first",
        cost="half at half of the tokens",
        evidence="paper: [Li et al. 2022](https://arxiv.org/abs/2108.06084)",
        use_for="language models whose training is unstable early on",
    ),
)
