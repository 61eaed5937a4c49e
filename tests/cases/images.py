"""Single operations on images."""

from math import nan

import torch

from composable.functional import images as I
from tests.support.arguments import of_images, with_strengths
from tests.support.cases import Case, FunctionCase

STEPS = {"gradients": "the result is piecewise constant, so its derivative is 0"}
NO_STRENGTH = (nan, "1", None, torch.zeros(3))

CASE = Case(
    functions=[
        *(
            FunctionCase(operation, arguments=with_strengths(low, high))
            for operation, low, high in [
                (I.brightness, 0.5, 1.5),
                (I.color, 0.5, 1.5),
                (I.contrast, 0.5, 1.5),
                (I.rotate, -20, 30),
                (I.sharpness, 0.5, 1.5),
                (I.shear_x, -0.2, 0.3),
                (I.shear_y, -0.2, 0.3),
                (I.solarize, 64.5, 200.5),
                (I.translate_x, -2.5, 3.5),
                (I.translate_y, -2.5, 3.5),
            ]
        ),
        FunctionCase(I.posterize, arguments=with_strengths(2, 6), expected_failures=STEPS),
        FunctionCase(I.equalize, arguments=of_images, expected_failures=STEPS),
        FunctionCase(I.autocontrast, arguments=of_images),
    ],
    invalid=dict.fromkeys(["factor", "bits", "degrees", "threshold", "pixels"], NO_STRENGTH),
)
