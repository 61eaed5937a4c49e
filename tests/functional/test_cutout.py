"""The laws of CutOut."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from composable.functional import apply_cutout, cutout, draw_cutout

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8]
SIZES = [(7,), (5, 6), (3, 4, 5)]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def images(batch=4, size=(5, 6), dtype=torch.float32):
    return (1 + 100 * torch.rand(batch, 3, *size, generator=seeded())).to(dtype)


def naive(x, draw):
    """Cut the holes pixel by pixel."""
    cut, size = x.clone(), x.shape[2:]
    for i in range(len(x)):
        for hole in draw[i] if draw.ndim == 4 else draw:
            for place in torch.cartesian_prod(*map(torch.arange, size)).reshape(-1, len(size)):
                if all(start <= at < stop for at, (start, stop) in zip(place, hole, strict=True)):
                    cut[(i, slice(None), *place)] = 0
    return cut


def sides(**options):
    boxes = draw_cutout(1, options.pop("size", (10, 12)), generator=seeded(), **options)
    return (boxes[..., 1] - boxes[..., 0]).flatten().tolist()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("num_holes", [1, 3])
def test_the_holes_are_zero_and_the_rest_stays(size, per_sample, num_holes):
    x = images(size=size)
    for seed in range(3):
        options = {"num_holes": num_holes, "per_sample": per_sample, "length": 3}
        draw = draw_cutout(4, size, **options, generator=seeded(seed))

        assert torch.equal(apply_cutout(x, draw), naive(x, draw))


@pytest.mark.parametrize("side", [1, 2, 3, 4, 5])
def test_a_hole_has_the_side_that_was_asked_for(side):
    """Odd ones too: a hole of 5 has 25 pixels, not 16."""
    x = torch.ones(200, 1, 10, 10)

    cut = cutout(x, length=side, generator=seeded(3))

    pixels = (cut == 0).sum((1, 2, 3))
    assert pixels.max() == side**2
    assert pixels.min() >= (side // 2) ** 2  # where the centre is in a corner


def test_a_length_below_one_is_a_share_of_the_shorter_side():
    assert sides(length=0.5) == [5, 5]
    assert sides(length=0.26) == [3, 3]
    assert sides(length=0.5, size=(12, 7, 9)) == [4, 4, 4]


def test_a_length_from_one_on_is_in_pixels():
    assert sides(length=1) == sides(length=1.0) == [1, 1]
    assert sides(length=11) == [11, 11]


def test_a_tiny_share_is_a_pixel_and_nothing_is_none():
    assert sides(length=0.001) == [1, 1]
    assert sides(length=0) == [0, 0]


@pytest.mark.parametrize("options", [{"num_holes": 0}, {"length": 0}])
@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_hole_changes_nothing(options, per_sample, dtype):
    x = images(dtype=dtype)

    assert torch.equal(cutout(x, **options, per_sample=per_sample, generator=seeded()), x)


def test_examples_have_holes_of_their_own_or_share_them():
    own = cutout(torch.ones(50, 2, 8, 8), length=3, generator=seeded())
    shared = cutout(torch.ones(50, 2, 8, 8), length=3, per_sample=False, generator=seeded())

    assert len(own.unique(dim=0)) > 20
    assert len(shared.unique(dim=0)) == 1
    assert torch.equal(own[:, 0], own[:, 1])


@pytest.mark.parametrize("length", [1, 3, 4, 9])
def test_with_uniform_sampling_every_pixel_is_equally_often_in_a_hole(length):
    x = torch.ones(20_000, 1, 4, 6)

    cut = cutout(x, length=length, uniform_sampling=True, generator=seeded()) == 0

    often = cut.float().mean(0)
    expected = length / (4 + length - 1) * length / (6 + length - 1)
    assert (often - expected).abs().max() < 0.015  # four deviations
    assert cut.flatten(1).any(1).all()  # no hole is wholly outside


def test_what_is_broken_in_a_hole_is_gone():
    x = torch.tensor([[[1.0, float("nan"), float("inf"), 4.0]]])
    hole = torch.tensor([[[1, 3]]])

    assert apply_cutout(x, hole).tolist() == [[[1, 0, 0, 4]]]
    assert apply_cutout(x, hole.unsqueeze(0)).tolist() == [[[1, 0, 0, 4]]]


def test_cutting_is_drawing_and_then_applying():
    for options in ({}, {"per_sample": False}, {"num_holes": 2, "length": 0.3}):
        whole = cutout(images(), **options, generator=seeded(3))
        draw = draw_cutout(4, (5, 6), **options, generator=seeded(3))

        assert torch.equal(whole, apply_cutout(images(), draw))


def test_masks_without_channels_are_cut_by_the_same_draw():
    x, draw = images(), draw_cutout(4, (5, 6), generator=seeded(4))

    assert torch.equal(apply_cutout(x[:, 0], draw), apply_cutout(x, draw)[:, 0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"per_sample": False}, {"num_holes": 2}])
def test_dtype_and_layout_stay(dtype, options):
    x = images(dtype=dtype).to(memory_format=torch.channels_last)

    cut = cutout(x, **options, generator=seeded())

    assert cut.dtype == dtype
    assert cut.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("per_sample", [False, True])
def test_batches_of_batches_are_cut_by_vmap(per_sample):
    x = torch.randn(3, 4, 2, 5, 6, generator=seeded())
    options = {"per_sample": per_sample, "num_holes": 2}
    draws = [draw_cutout(4, (5, 6), **options, generator=seeded(seed)) for seed in range(3)]

    together = torch.func.vmap(apply_cutout)(x, torch.stack(draws))
    one_draw = torch.func.vmap(partial(apply_cutout, draw=draws[0]))(x)

    for i, draw in enumerate(draws):
        assert torch.equal(together[i], apply_cutout(x[i], draw))
        assert torch.equal(one_draw[i], apply_cutout(x[i], draws[0]))


@pytest.mark.compile
def test_compiles_into_one_graph_with_its_draw_at_any_size():
    apply = torch.compile(apply_cutout, fullgraph=True, backend="aot_eager")
    for per_sample in (False, True):
        draw = draw_cutout(4, (5, 6), per_sample=per_sample, generator=seeded())
        assert torch.equal(apply(images(), draw), apply_cutout(images(), draw))

    whole = torch.compile(partial(cutout, num_holes=2), fullgraph=True, backend="aot_eager")
    for batch, size in [(4, (5, 6)), (3, (7, 9)), (2, (8, 11))]:
        assert (whole(images(batch, size)) == 0).any()


# What is refused


def test_inputs_are_a_tensor_with_spatial_dimensions(unchecked):
    with pytest.raises(ValueError, match=r"inputs must have shape \[batch, channels, .*\(4, 2\)"):
        cutout(torch.zeros(4, 2))
    with pytest.raises(TypeError, match="inputs must be a tensor, not a list"):
        cutout([images()])


def test_the_draw_is_of_the_same_batch_and_dimensions(unchecked):
    x = images()
    with pytest.raises(ValueError, match="draw has holes for 3 examples, but inputs has 4"):
        apply_cutout(x, draw_cutout(3, (5, 6), generator=seeded()))
    with pytest.raises(ValueError, match="does not match inputs of shape"):
        apply_cutout(x[:, 0, 0], draw_cutout(4, (1, 5, 6), generator=seeded()))
    with pytest.raises(TypeError, match=r"draw must be a tensor, not a tuple; draw_cutout"):
        apply_cutout(x, (1, 2))


def test_holes_look_like_the_ones_of_the_paper():
    """Centre (2, 5) and side 4 in a picture of 5 x 6: clipped at the right."""
    cut = apply_cutout(torch.ones(1, 1, 5, 6), torch.tensor([[[0, 4], [3, 7]]]))

    assert_close(cut[0, 0, :4, 3:], torch.zeros(4, 3))
    assert cut.sum() == 5 * 6 - 4 * 3
