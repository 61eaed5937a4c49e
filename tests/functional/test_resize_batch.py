"""Smaller images, and the schedule of their scale; test_draws.py has the laws of crops."""

import pytest
import torch
from torch.testing import assert_close

from composable.functional import draw_crop, progressive_scale, resize_batch, scaled_size
from tests.support.tensors import seeded, uniform

SIZES = [(9,), (8, 10), (4, 5, 6)]


def coordinates(size, batch=2):
    """Build images whose pixels hold their centres, from 0 to 1 along each side."""
    axes = [(torch.arange(n) + 0.5) / n for n in size]
    grid = torch.stack(torch.meshgrid(*axes, indexing="ij"))
    return grid.expand(batch, *grid.shape)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", [0.3, 0.5, 0.77])
def test_pixels_and_class_indices_keep_their_coordinates(size, scale):
    """Class indices: each pixel takes that of the pixel in which its centre lies."""
    maps = 2**24 + torch.arange(torch.Size(size).numel()).reshape(1, *size).expand(2, *size)

    small = resize_batch(coordinates(size), maps, scale_factor=scale, resize_targets=True)

    new = scaled_size(size, scale_factor=scale)
    inner = (..., *(slice(1, -1) for _ in size))  # at the border there is nothing beyond
    assert small.inputs.shape == (2, len(size), *new)
    assert_close(small.inputs[inner], coordinates(new)[inner])
    at = (coordinates(new) * torch.tensor(size).reshape(-1, *[1] * len(size))).floor().long()
    assert torch.equal(
        small.targets, torch.stack([m[tuple(i)] for m, i in zip(maps, at, strict=True)])
    )


def test_half_the_size_matches_average_pooling():
    x = uniform(size=(8, 10))

    small = resize_batch(x, scale_factor=0.5)

    assert_close(small, torch.nn.functional.avg_pool2d(x, 2))
    for dtype in (torch.uint8, torch.int64):
        assert resize_batch(x.to(dtype), scale_factor=0.5).dtype == dtype


@pytest.mark.parametrize("size", [(8, 10), (4, 5, 6)])
def test_interpolates_floating_point_targets_like_inputs(size):
    x = uniform(size=size)

    small = resize_batch(x, x[:, 0], scale_factor=0.6, resize_targets=True)
    probabilities = resize_batch(x, x, scale_factor=0.6, resize_targets=True)

    assert_close(small.targets, small.inputs[:, 0])
    assert torch.equal(probabilities.targets, probabilities.inputs)


def test_crops_are_uniform():
    generator = seeded()
    drawn = [tuple(draw_crop((5, 4), (3, 4), generator=generator).tolist()) for _ in range(3000)]

    assert set(drawn) == {(0, 0), (1, 0), (2, 0)}
    assert all(abs(drawn.count((i, 0)) / 3000 - 1 / 3) < 0.04 for i in range(3))


@pytest.mark.parametrize("mode", ["resize", "crop"])
def test_targets_or_full_size_are_not_resized(mode):
    x = uniform(size=(9, 11))
    maps = x[:, 0]

    assert resize_batch(x, maps, scale_factor=0.5, mode=mode).targets is maps
    assert resize_batch(x, scale_factor=0.5, mode=mode).shape == (4, 3, 5, 6)
    assert resize_batch(x, scale_factor=1.0, mode=mode) is x
    whole = resize_batch(x, maps, scale_factor=1.0, mode=mode, size_increment=4)
    assert whole.inputs is x
    assert whole.targets is maps


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
def test_sizes_are_rounded_to_the_increment(size, scale, increment, expected):
    options = {"scale_factor": scale, "size_increment": increment}

    assert scaled_size(size, **options) == expected
    if all(size):
        assert resize_batch(uniform(size=size), **options).shape == (4, 3, *expected)


@pytest.mark.compile
def test_compiles_into_one_graph_for_dynamic_sizes():
    compiled = torch.compile(resize_batch, fullgraph=True, backend="aot_eager")

    for size in [(8, 10), (12, 9), (14, 15)]:
        x, options = uniform(size=size), {"scale_factor": 0.5, "resize_targets": True}
        ours, theirs = (f(x, x[:, 0].long(), **options) for f in (compiled, resize_batch))
        assert_close(ours, theirs)


# The schedule


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [*[0.5] * 11, *(0.5 + k / 12 for k in range(1, 6)), *[1.0] * 5]),
        ({"delay_fraction": 0, "finetune_fraction": 0}, [0.5 + k / 40 for k in range(21)]),
        ({"delay_fraction": 0.5, "finetune_fraction": 0.5}, [0.5] * 10 + [1.0] * 11),
        ({"delay_fraction": 1, "finetune_fraction": 0}, [0.5] * 20 + [1.0]),
        ({"delay_fraction": 0, "finetune_fraction": 1}, [1.0] * 21),
    ],
)
def test_scale_waits_grows_linearly_and_stays(options, expected):
    scales = [progressive_scale(t / 20, **options) for t in range(21)]

    assert scales == pytest.approx(expected)
    assert scales[-1] == 1.0


@pytest.mark.parametrize("delay", [k / 10 for k in range(11)])
def test_scale_jumps_without_a_phase_of_growth(delay):
    options = {"delay_fraction": delay, "finetune_fraction": 1 - delay}

    scales = [progressive_scale(t / 10, initial_scale=1 / 3, **options) for t in range(11)]

    assert scales == [1 / 3 if t < round(10 * delay) else 1.0 for t in range(11)]
