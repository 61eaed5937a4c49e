"""A warning of a function or a layer points at the line of the user that it is about."""

import warnings

import pytest
import torch
from torch import nn

import composable.functional as F
from composable import Trainer
from composable.algorithms import BlurPool
from composable.functional.layers.low_precision import report_if_idle
from tests.support.models import linear


class OwnModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, inputs):
        return self.norm(inputs)


NORMALIZED = torch.full((2, 3, 8, 8), -2.0)
INDICES = nn.Sequential(nn.MaxPool2d(2, return_indices=True), nn.Conv2d(16, 16, 1, stride=2))


def call(function, *args):
    function(*args)


CALLS = {
    "nothing to replace": (call, F.blurpool, linear()),
    "a layer that is skipped": (call, F.blurpool, INDICES),
    "a layer that is bypassed": (call, F.factorize, nn.MultiheadAttention(64, 2)),
    "augmix": (call, F.augmix, NORMALIZED),
    "randaugment": (call, F.randaugment, NORMALIZED),
}


def lines(call, *args):
    """Return the lines that the warnings of a call point to."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(*args)
    return {(one.filename, one.lineno) for one in caught}


def line_of(function):
    """Return the line of a function's only statement."""
    return __file__, function.__code__.co_firstlineno + 1


@pytest.mark.parametrize("name", CALLS)
def test_warning_of_a_function_points_at_its_call(name):
    assert lines(*CALLS[name]) == {line_of(call)}


def test_warning_of_a_layer_points_at_the_forward_of_the_model():
    model = report_if_idle(F.low_precision_layernorm(OwnModel()))

    assert lines(model, torch.ones(2, 4)) == {line_of(OwnModel.forward)}


def build(algorithm):
    Trainer(linear(), algorithms=algorithm, device="cpu", progress_bar=False)


def test_warning_of_a_surgery_points_at_the_construction_of_the_trainer():
    assert line_of(build) in lines(build, BlurPool())
