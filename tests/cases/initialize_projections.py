"""Initialization of projections."""

import composable.functional as F
from composable.algorithms import InitializeProjections
from tests.support.arguments import rows
from tests.support.cases import ONE_FAILS, SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import NO_CLASS, no_number, no_word
from tests.support.meaning import drawn_surgery
from tests.support.models import WIDTH, Hidden
from tests.support.runs import VISION

NO_STRENGTH = no_number(-0.1, float("inf"))

CASE = Case(
    functions=[
        FunctionCase(
            F.initialize_projections,
            {"attention": "fan_in"},
            arguments=lambda n: (Hidden(WIDTH),),
            inputs=rows(5, WIDTH),
        ),
        FunctionCase(
            F.register_projections,
            arguments={"kind": "some.module.Class", "output": "out"},
            invalid={"kind": NO_CLASS, "output": (3, b"x", ""), "value": (3, b"x", "")},
            invalid_sets=[({"output": None}, "output=None and value=None describe no projection")],
            no_row="it adds to a registry, and computes nothing",
        ),
    ],
    algorithm=AlgorithmCase(
        InitializeProjections,
        {
            "attention": ["zero", "fan_in", "mimetic"],
            "feed_forward": ["zero", "keep"],
            "scale": [0.5, 1.0],
        },
        meaning=drawn_surgery(F.initialize_projections),
        neutral=InitializeProjections(attention="keep", feed_forward="keep"),
        cannot={VISION: "it has no such projections"},
        order_matters={"Factorize": ("a low-rank pair is not a known projection", ONE_FAILS)},
    ),
    invalid={
        "attention": no_word(),
        "feed_forward": (*no_word(), "mimetic"),
        "scale": NO_STRENGTH,
        "beta": NO_STRENGTH,
        "noise": NO_STRENGTH,
    },
    overview=Overview(
        group=SURGERY,
        summary="initializes the output projections of residual blocks",
        changes="output projections: start at zero, small or mimetic",
        cost="none per step",
        evidence="wide: [Zhang et al. 2019](https://arxiv.org/abs/1901.09321), "
        "[Trockman and Kolter 2023](https://arxiv.org/abs/2305.09828)",
        use_for="transformers and residual networks that are trained from scratch",
    ),
)
