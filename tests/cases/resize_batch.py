"""Progressive resizing."""

from collections.abc import Mapping
from typing import Any

import composable.functional as F
from composable import State
from composable.algorithms import ProgressiveResizing
from tests.support.arguments import images, seeded, with_maps
from tests.support.cases import COMPUTE, AlgorithmCase, Case, FunctionCase, Overview
from tests.support.invalid import (
    NO_DENSE_TARGETS,
    NO_IMAGES,
    NO_SCALE,
    NO_SHARE,
    NO_SIZE,
    NO_TENSOR,
)
from tests.support.meaning import hyperparameters_of
from tests.support.runs import LANGUAGE

HALVED = {"scale_factor": 0.5, "resize_targets": True}


def resized(a: Any, s: State) -> Mapping[str, Any]:
    """Resize the inputs at the scale of the time."""
    when = ("initial_scale", "finetune_fraction", "delay_fraction")
    scale = F.progressive_scale(s.elapsed, **{name: getattr(a, name) for name in when})
    options = hyperparameters_of(a, *when)
    small = F.resize_batch(s.inputs, **options, scale_factor=scale, generator=s.generator(a.name))
    return {"batch": (small, s.targets)}


CASE = Case(
    functions=[
        FunctionCase(F.resize_batch, needs=HALVED, arguments=with_maps),
        FunctionCase(F.resize_batch, {"mode": "crop"}, needs=HALVED, arguments=with_maps),
        FunctionCase(
            F.draw_crop,
            arguments=((8, 8), (4, 4)),
            invalid={"new_size": (*NO_SIZE, (9, 4), (4,))},
        ),
        FunctionCase(
            F.apply_crop,
            arguments=lambda n: (
                images(n),
                (4, 4),
                F.draw_crop((8, 8), (4, 4), generator=seeded()),
            ),
            invalid={"tensor": NO_TENSOR, "new_size": (*NO_SIZE, (9, 4)), "offset": NO_TENSOR},
        ),
        FunctionCase(F.scaled_size, arguments={"size": (8, 8), "scale_factor": 0.5}),
        FunctionCase(
            F.progressive_scale,
            arguments=(0.5,),
            invalid_sets=[({"delay_fraction": 0.9}, "must not sum to more than 1")],
        ),
    ],
    algorithm=AlgorithmCase(
        ProgressiveResizing,
        {
            "mode": ["crop", "resize"],
            "initial_scale": [0.75],
            "finetune_fraction": [0.2, 0.4],
            "delay_fraction": [0.5, 0.3],
            "size_increment": [2],
        },
        meaning=resized,
        invalid_sets=[
            (
                {"delay_fraction": 0.9},
                "delay_fraction=0.9 and finetune_fraction=0.2 must not sum to more than 1",
            )
        ],
        cannot={LANGUAGE: "token ids are not images"},
        order_matters={
            "AugMix ColOut CutOut RandAugment": (
                "one draws positions for the image size that the other produced"
            ),
        },
        external={"initial_scale": 0.5},
    ),
    invalid={
        "inputs": NO_IMAGES,
        "targets": NO_DENSE_TARGETS,
        "scale_factor": NO_SCALE,
        "initial_scale": NO_SCALE,
        "finetune_fraction": NO_SHARE,
        "delay_fraction": NO_SHARE,
    },
    overview=Overview(
        group=COMPUTE,
        summary="trains on small images first",
        changes="images: small ones first",
        cost="× 0.33 at half the size",
        evidence="practice: [fast.ai 2018](https://www.fast.ai/posts/2018-04-30-dawnbench-fastai.html)",
        use_for="image models that accept any size, when the model is the bottleneck",
    ),
)
