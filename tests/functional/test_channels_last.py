"""The laws of the channels-last layout: other strides, the same values."""

import torch
from torch import nn
from torch.testing import assert_close

from composable.functional import channels_last, weight_standardization
from tests.support.tensors import uniform


def net():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv3d(1, 1, 1), nn.Flatten(), nn.Linear(4, 2)
    )


def is_last(tensor):
    return tensor.is_contiguous(memory_format=torch.channels_last)


def test_changes_only_the_layout_of_image_weights():
    model = net()
    model.register_buffer("mask", uniform())

    new = channels_last(model)

    assert is_last(new[0].weight)
    assert is_last(new.mask)
    assert not is_last(model[0].weight)
    assert torch.equal(new[0].weight, model[0].weight)
    shared = [name for name, p in new.named_parameters() if p is model.get_parameter(name)]
    assert shared == [name for name, _ in model.named_parameters() if name != "0.weight"]


def test_matches_torch_in_place():
    model = net()[:2]  # torch's refuses tensors of 5 dimensions
    new, theirs = channels_last(model), net()[:2].to(memory_format=torch.channels_last)

    assert is_last(new(uniform()))
    assert_close(new(uniform()), model(uniform()))
    assert [p.stride() for p in new.parameters()] == [p.stride() for p in theirs.parameters()]


def test_works_with_a_parametrization():
    new = channels_last(weight_standardization(nn.Conv2d(3, 4, 3)))

    assert is_last(new.weight)
    assert is_last(new.parametrizations.weight.original)
