"""Label smoothing."""

import composable.functional as F
from composable.algorithms import LabelSmoothing
from composable.testing.problems import CLASSES
from tests.support.arguments import probabilities
from tests.support.cases import AUGMENTATION, LAST_BITS, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.integrations import LOSS_INSIDE, in_callbacks
from tests.support.invalid import NO_SHARE

CASE = Case(
    functions=[
        FunctionCase(F.smooth_labels, of="class indices", needs={"num_classes": CLASSES}),
        FunctionCase(
            F.smooth_labels,
            of="probabilities",
            arguments=probabilities,
            needs={"num_classes": CLASSES},
        ),
    ],
    algorithm=AlgorithmCase(
        LabelSmoothing,
        {"smoothing": [0.3, 0.1]},
        meaning=lambda a, s: {
            "batch": (
                s.inputs,
                F.smooth_labels(s.targets, smoothing=a.smoothing, num_classes=s.outputs.shape[1]),
            ),
        },
        order_matters={
            "MixUp CutMix": (
                "both are linear in the targets, and the order of sums changes rounding",
                LAST_BITS,
            )
        },
        refused=in_callbacks(LOSS_INSIDE),
    ),
    invalid={
        "smoothing": NO_SHARE,
        "num_classes": (0, -1, 2.5, "3"),
    },
    overview=Overview(
        group=AUGMENTATION,
        summary="smooths one-hot targets",
        changes="targets: smoothed",
        cost="+0.01 %",
        evidence="wide, and small: [Szegedy et al. 2015](https://arxiv.org/abs/1512.00567)",
        use_for="classification with clean labels; not for the teacher in distillation",
    ),
)
