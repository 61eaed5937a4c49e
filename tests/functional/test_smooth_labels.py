"""The laws of label smoothing."""

import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot
from torch.testing import assert_close

from composable.functional import smooth_labels

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int16, torch.int32, torch.int64]


def test_indices_are_smoothed_as_in_the_paper():
    smooth = smooth_labels(torch.tensor([0, 2]), smoothing=0.3, num_classes=3)

    assert_close(smooth, 0.7 * torch.tensor([[1.0, 0, 0], [0, 0, 1]]) + 0.3 / 3)


def test_the_loss_is_that_of_torch():
    outputs = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    indices = torch.arange(6) % 5

    loss = cross_entropy(outputs, smooth_labels(indices, smoothing=0.2, num_classes=5))

    assert_close(loss, cross_entropy(outputs, indices, label_smoothing=0.2))


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 2, 3)])
def test_indices_and_their_encoding_are_smoothed_alike(shape):
    indices = torch.arange(torch.Size(shape).numel()).reshape(shape) % 5
    dense = one_hot(indices, 5).movedim(-1, 1).float()

    smooth = smooth_labels(indices, num_classes=5)

    assert smooth.shape == (shape[0], 5, *shape[1:])
    assert_close(smooth, smooth_labels(dense))


def test_no_smoothing_changes_nothing():
    dense = torch.eye(3)

    assert torch.equal(smooth_labels(dense, smoothing=0.0), dense)
    assert torch.equal(smooth_labels(torch.arange(3), smoothing=0.0, num_classes=3), dense)


def test_full_smoothing_leaves_no_label():
    for targets in (torch.eye(4), torch.arange(4)):
        smooth = smooth_labels(targets, smoothing=1.0, num_classes=4)
        assert torch.equal(smooth, torch.full((4, 4), 0.25))


def test_smoothing_twice_multiplies_what_is_kept():
    twice = smooth_labels(smooth_labels(torch.eye(3), smoothing=0.2), smoothing=0.5)

    assert_close(twice, smooth_labels(torch.eye(3), smoothing=1 - 0.8 * 0.5))


@pytest.mark.parametrize("dtype", FLOATS)
def test_probabilities_keep_their_dtype(dtype):
    smooth = smooth_labels(torch.eye(4, dtype=dtype))

    assert smooth.dtype == dtype
    assert_close(smooth, (0.9 * torch.eye(4) + 0.025).to(dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_every_integer_is_an_index(dtype):
    smooth = smooth_labels(torch.tensor([1], dtype=dtype), num_classes=2)

    assert smooth.dtype == torch.float32
    assert_close(smooth, torch.tensor([[0.05, 0.95]]))


def test_the_layout_of_dense_maps_stays():
    maps = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)

    assert smooth_labels(maps).is_contiguous(memory_format=torch.channels_last)


def test_a_single_vector_holds_classes():
    smooth = smooth_labels(torch.tensor([1.0, 0.0]), smoothing=0.5, num_classes=2)

    assert smooth.tolist() == [0.75, 0.25]


def test_examples_are_smoothed_alone_as_together():
    indices = torch.arange(4) % 3
    alone = torch.func.vmap(lambda i: smooth_labels(i, num_classes=3))(indices)

    assert_close(alone, smooth_labels(indices, num_classes=3))
    dense = torch.func.vmap(lambda row: smooth_labels(row, num_classes=3))(torch.eye(3))
    assert_close(dense, smooth_labels(torch.eye(3)))


@pytest.mark.parametrize("smoothing", [-0.1, 1.1, float("nan")])
def test_smoothing_is_a_share(smoothing):
    with pytest.raises(ValueError, match=r"smoothing=.* must be in \[0, 1\]"):
        smooth_labels(torch.eye(3), smoothing=smoothing)


def test_indices_need_a_class_count():
    with pytest.raises(ValueError, match=r"num_classes=None.*torch.int64.*outputs.shape\[1\]"):
        smooth_labels(torch.arange(3))


def test_the_class_count_must_be_that_of_the_probabilities():
    with pytest.raises(
        ValueError, match=r"num_classes=4 must match the 3 classes .* in dimension 1"
    ):
        smooth_labels(torch.eye(3), num_classes=4)


def test_there_is_at_least_one_class():
    with pytest.raises(ValueError, match="num_classes=0 must be at least 1"):
        smooth_labels(torch.arange(3), num_classes=0)


def test_a_lone_float_is_no_target():
    with pytest.raises(ValueError, match="targets must have a dimension of classes"):
        smooth_labels(torch.tensor(0.5))


@pytest.mark.parametrize("index", [3, -1])
def test_an_index_out_of_range_is_loud(index):
    with pytest.raises(RuntimeError, match="out of bounds"):
        smooth_labels(torch.tensor([0, index]), num_classes=3)
