"""The laws of label smoothing."""

import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot
from torch.testing import assert_close

from composable.functional import smooth_labels
from tests.support.tensors import seeded

INTEGERS = [torch.uint8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("smoothing", [0.0, 0.3, 1.0])
def test_indices_and_probabilities_are_smoothed_as_in_the_paper(smoothing):
    expected = (1 - smoothing) * torch.eye(3) + smoothing / 3

    assert_close(smooth_labels(torch.arange(3), smoothing=smoothing, num_classes=3), expected)
    assert_close(smooth_labels(torch.eye(3), smoothing=smoothing), expected)


def test_loss_matches_torch():
    outputs = torch.randn(6, 5, generator=seeded())
    indices = torch.arange(6) % 5

    loss = cross_entropy(outputs, smooth_labels(indices, smoothing=0.2, num_classes=5))

    assert_close(loss, cross_entropy(outputs, indices, label_smoothing=0.2))


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 2, 3)])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_indices_and_their_encoding_are_smoothed_alike(shape, dtype):
    indices = torch.arange(torch.Size(shape).numel()).reshape(shape) % 5
    dense = one_hot(indices, 5).movedim(-1, 1).float()

    smooth = smooth_labels(indices.to(dtype), num_classes=5)

    assert smooth.shape == (shape[0], 5, *shape[1:])
    assert_close(smooth, smooth_labels(dense))


def test_accepts_a_single_vector_of_probabilities():
    smooth = smooth_labels(torch.tensor([1.0, 0.0]), smoothing=0.5, num_classes=2)

    assert smooth.tolist() == [0.75, 0.25]


@pytest.mark.parametrize("index", [3, -1])
def test_rejects_class_index_out_of_range(index):
    with pytest.raises(RuntimeError, match="out of bounds"):
        smooth_labels(torch.tensor([0, index]), num_classes=3)
