"""ALiBi."""

import composable.functional as F
from composable.algorithms import Alibi
from tests.support.cases import SURGERY, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.integrations import READ_ONLY_BATCH, in_callbacks
from tests.support.invalid import NO_CLASS, NO_DEVICE, no_count, no_number
from tests.support.meaning import surgery
from tests.support.models import LENGTH
from tests.support.runs import VISION
from tests.support.surgery import POSITIONS, of_language_model

CASE = Case(
    functions=[
        of_language_model(
            F.alibi,
            needs={"max_sequence_length": LENGTH},
            sought=POSITIONS,
            removed=r"places\.weight",
        ),
        FunctionCase(F.alibi_slopes, arguments=(3,)),
        FunctionCase(F.alibi_bias, arguments=(3, 4)),
        FunctionCase(
            F.register_alibi,
            arguments={"kinds": "some.module.Class"},
            invalid={"kinds": NO_CLASS},
            no_row="it adds to a registry, and computes nothing",
        ),
    ],
    algorithm=AlgorithmCase(
        Alibi,
        {"max_sequence_length": [LENGTH], "train_sequence_length_scaling": [0.5, 0.25, 1.0]},
        meaning=surgery(F.alibi, "train_sequence_length_scaling"),
        neutral="it replaces position embeddings",
        cannot={VISION: "images are not sequences of tokens"},
        order_matters={
            "SeqLengthWarmup": "one takes a fraction of the length that the other produced"
        },
        refused=in_callbacks(READ_ONLY_BATCH),
        external={"max_sequence_length": 64, "train_sequence_length_scaling": 0.25},
    ),
    invalid={
        "max_sequence_length": no_count(1),
        "train_sequence_length_scaling": no_number(0, -0.1, 1.1),
        "heads": no_count(1),
        "length": no_count(0),
        "device": NO_DEVICE,
    },
    overview=Overview(
        group=SURGERY,
        summary="trains on short sequences, extrapolates to longer ones",
        changes="positions: biases by distance; sequences: split into pieces",
        cost="× 1.24; × 0.86 on pieces of a quarter",
        evidence="paper: [Press et al. 2022](https://arxiv.org/abs/2108.12409)",
        use_for=(
            "language models that must extrapolate to contexts longer than those seen in training"
        ),
    ),
)
