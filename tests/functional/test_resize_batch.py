"""Smaller images, and the schedule of their scale; test_draws.py has the laws of crops."""

import pytest
import torch
from torch.testing import assert_close

from composable.functional import draw_crop, progressive_scale, resize_batch, scaled_size
from tests.support.tensors import FLOATS, seeded, uniform

DTYPES = [*FLOATS, torch.uint8, torch.int64]
SIZES = [(9,), (8, 10), (4, 5, 6)]


def coordinates(size, batch=2):
    """Build images whose pixels hold their centres, from 0 to 1 along each side."""
    axes = [(torch.arange(n) + 0.5) / n for n in size]
    grid = torch.stack(torch.meshgrid(*axes, indexing="ij"))
    return grid.expand(batch, *grid.shape)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", [0.3, 0.5, 0.77])
@pytest.mark.parametrize("classes", [False, True])
def test_a_pixel_stays_where_it_was_in_the_image_and_in_its_map(size, scale, classes):
    """Class indices: each pixel takes that of the pixel in which its centre lies."""
    number = torch.arange(torch.Size(size).numel()).reshape(1, *size).expand(2, *size)
    maps = number.unsqueeze(1) if classes else number

    small = resize_batch(coordinates(size), maps, scale_factor=scale, resize_targets=True)

    new = scaled_size(size, scale_factor=scale)
    inner = (..., *(slice(1, -1) for _ in size))  # at the border there is nothing beyond
    assert small.inputs.shape == (2, len(size), *new)
    assert_close(small.inputs[inner], coordinates(new)[inner])
    at = (coordinates(new) * torch.tensor(size).reshape(-1, *[1] * len(size))).floor().long()
    expected = sum(at[:, dim] * torch.Size(size[dim + 1 :]).numel() for dim in range(len(size)))
    assert torch.equal(small.targets[:, 0] if classes else small.targets, expected)


def test_large_class_indices_are_not_rounded():
    maps = torch.full((1, 4, 4), 2**24 + 1)

    small = resize_batch(uniform(1, (4, 4)), maps, scale_factor=0.5, resize_targets=True)

    assert (small.targets == 2**24 + 1).all()


def test_half_the_size_is_the_mean_of_four_pixels():
    x = uniform(size=(8, 10))

    small = resize_batch(x, scale_factor=0.5).inputs

    assert_close(small, torch.nn.functional.avg_pool2d(x, 2))


@pytest.mark.parametrize("size", [(8, 10), (4, 5, 6)])
def test_maps_of_numbers_are_interpolated_like_channels(size):
    x = uniform(size=size)

    small = resize_batch(x, x[:, 0], scale_factor=0.6, resize_targets=True)
    probabilities = resize_batch(x, x, scale_factor=0.6, resize_targets=True)

    assert_close(small.targets, small.inputs[:, 0])
    assert torch.equal(probabilities.targets, probabilities.inputs)


def test_every_place_of_a_crop_is_equally_likely():
    generator = seeded()
    drawn = [tuple(draw_crop((5, 4), (3, 4), generator=generator).tolist()) for _ in range(3000)]

    assert set(drawn) == {(0, 0), (1, 0), (2, 0)}
    assert all(abs(drawn.count((i, 0)) / 3000 - 1 / 3) < 0.04 for i in range(3))


@pytest.mark.parametrize("mode", ["resize", "crop"])
def test_targets_stay_unless_asked_for(mode):
    x = uniform(size=(9, 11))
    maps, options = x[:, 0], {"scale_factor": 0.5, "mode": mode}

    assert resize_batch(x, maps, **options).targets is maps
    assert resize_batch(x, **options).targets is None


@pytest.mark.parametrize("mode", ["resize", "crop"])
@pytest.mark.parametrize("resize_targets", [False, True])
def test_full_size_changes_nothing(mode, resize_targets):
    x = uniform(size=(9, 11))
    maps, options = x[:, 0], {"mode": mode, "resize_targets": resize_targets}

    small = resize_batch(x, maps, scale_factor=1.0, **options, size_increment=4)

    assert small.inputs is x
    assert small.targets is maps


@pytest.mark.parametrize(
    ("size", "scale", "increment", "expected"),
    [
        ((32, 32), 0.5, 4, (16, 16)),
        ((32, 48), 0.6, 4, (20, 28)),  # each side by itself: 19.2 and 28.8
        ((33, 7), 0.99, 4, (32, 7)),  # never more than it was
        ((33, 7), 1.0, 4, (33, 7)),
        ((33, 7), 0.01, 4, (4, 4)),  # at least one increment
        ((3,), 0.1, 4, (3,)),
        ((10, 10), 0.25, 1, (3, 3)),
        ((1, 1), 0.1, 1, (1, 1)),
        ((0, 4), 0.5, 1, (0, 2)),
    ],
)
def test_sides_are_the_nearest_multiples_of_the_increment(size, scale, increment, expected):
    options = {"scale_factor": scale, "size_increment": increment}

    assert scaled_size(size, **options) == expected
    if all(size):
        assert resize_batch(uniform(size=size), **options).inputs.shape == (4, 3, *expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_resizing_keeps_dtype_and_layout(dtype, layout):
    x = uniform(size=(8, 10), dtype=dtype).to(memory_format=layout)

    small = resize_batch(x, scale_factor=0.5).inputs

    assert small.dtype == dtype
    assert small.is_contiguous(memory_format=layout)


@pytest.mark.compile
def test_resizing_is_one_graph_at_any_size():
    compiled = torch.compile(resize_batch, fullgraph=True, backend="aot_eager")

    for size in [(8, 10), (12, 9), (14, 15)]:
        x, options = uniform(size=size), {"scale_factor": 0.5, "resize_targets": True}
        ours, theirs = (f(x, x[:, 0].long(), **options) for f in (compiled, resize_batch))
        assert_close(ours, theirs)


# The schedule


def test_the_scale_waits_grows_and_stays():
    scales = [progressive_scale(t / 20) for t in range(21)]

    assert scales[:11] == [0.5] * 11
    assert_close(scales[11:16], [0.5 + k / 12 for k in range(1, 6)])
    assert scales[16:] == [1.0] * 5


@pytest.mark.parametrize("delay", [k / 10 for k in range(11)])
@pytest.mark.parametrize("initial_scale", [0.1, 1 / 3, 1.0])
def test_without_a_phase_of_growing_it_jumps(delay, initial_scale):
    options = {"delay_fraction": delay, "finetune_fraction": 1 - delay}
    scales = [progressive_scale(t / 10, initial_scale=initial_scale, **options) for t in range(11)]

    expected = [initial_scale if t < round(10 * delay) else 1.0 for t in range(11)]
    assert scales == expected


def test_without_a_delay_it_grows_at_once_and_without_a_finetune_to_the_end():
    options = {"delay_fraction": 0, "finetune_fraction": 0}

    assert [progressive_scale(t / 4, **options) for t in range(5)] == [0.5, 0.625, 0.75, 0.875, 1.0]
