"""Low-precision norms that have no effect in training warn once."""

from functools import partial

import pytest
import torch
from torch import nn

from composable.algorithms import LowPrecisionGroupNorm, LowPrecisionLayerNorm
from composable.functional import NoEffectWarning, low_precision_layernorm
from tests.support.models import CLASSES
from tests.support.runs import make_trainer

NORMS = pytest.mark.parametrize(
    ("algorithm", "norm"),
    [
        (LowPrecisionLayerNorm, partial(nn.LayerNorm, 4)),
        (LowPrecisionGroupNorm, partial(nn.GroupNorm, 2, 4)),
    ],
)


class InAutocast(nn.Sequential):
    def forward(self, inputs):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(inputs).float()


@NORMS
def test_warns_once_without_autocast(algorithm, norm):
    shared = norm()
    model = nn.Sequential(shared, nn.Linear(4, 4), shared, nn.Linear(4, CLASSES))
    with pytest.warns(NoEffectWarning, match="there is no autocast.*precision=") as caught:
        make_trainer(model, algorithms=[algorithm()]).fit()

    assert len(caught) == 1


@NORMS
def test_does_not_warn_if_it_has_an_effect(algorithm, norm):
    make_trainer(InAutocast(norm(), nn.Linear(4, CLASSES)), algorithms=[algorithm()]).fit()
    plain = nn.Sequential(norm(), nn.Linear(4, CLASSES))
    make_trainer(plain, algorithms=[algorithm(torch.bfloat16)]).fit()
    low_precision_layernorm(nn.LayerNorm(4))(torch.rand(2, 4))  # a function does not warn
