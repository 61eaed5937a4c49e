"""Selective backprop."""

from collections.abc import Mapping
from typing import Any

import composable.functional as F
from composable import State
from composable.algorithms import SelectiveBackprop
from tests.support.cases import COMPUTE, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_SHARE, NO_TENSOR, no_count, no_number


def selected(a: Any, s: State) -> Mapping[str, Any]:
    """Select examples by their losses, in the batches in which it selects."""
    acts = F.should_select(
        s.elapsed, s.timestamp.batch, start=a.start, end=a.end, interrupt=a.interrupt
    )
    chosen = F.select_using_loss(a.score(s), keep=a.keep, generator=s.generator(a.name))
    return {"batch": (s.inputs[chosen], s.targets[chosen])} if acts else {}


CASE = Case(
    functions=[
        FunctionCase(F.select_using_loss),
        FunctionCase(F.draw_selection),
        FunctionCase(F.apply_selection, invalid={"draw": NO_TENSOR}),
        FunctionCase(F.should_select, arguments=(0.6, 3), invalid={"batch_index": no_count(0)}),
    ],
    algorithm=AlgorithmCase(
        SelectiveBackprop,
        {"start": [0.0, 0.3], "end": [1.0], "keep": [0.5, 1.0], "interrupt": [2, 0, 1]},
        meaning=selected,
        invalid_sets=[
            ({"start": 0.6, "end": 0.5}, "start=0.6 must be at most end=0.5"),
            ({"keep": 0}, r"keep=0 must be in \(0, 1\]"),
        ],
        order_matters={
            "Alibi AugMix ColOut CutOut ProgressiveResizing RandAugment": (
                "examples are selected by their loss before or after they are modified"
            ),
        },
    ),
    invalid={
        "losses": NO_TENSOR,
        "keep": NO_SHARE,
        "start": NO_SHARE,
        "end": NO_SHARE,
        "interrupt": no_count(0),
        "scale_factor": no_number(0, -1, 1.1),
    },
    overview=Overview(
        group=COMPUTE,
        summary="trains on the examples with a high loss",
        changes="batch: the examples with a high loss",
        cost="× 0.55 to × 0.89 where it selects",
        evidence=(
            "disputed: [Jiang et al. 2019](https://arxiv.org/abs/1910.00762), against it "
            "[Kaddour et al. 2023](https://arxiv.org/abs/2307.06440)"
        ),
        use_for="clean labels, costly backward passes; compare with a shorter plain run",
    ),
)
