"""Where boxes may stand, counted out, and which pixels they cover."""

import itertools

import pytest
import torch

from composable.functional._boxes import clip_boxes, clip_region, draw_boxes, inside, place_boxes
from composable.functional._sampling import numbers


def all_places(side, length, uniform_sampling):
    """Return every place of a box with this side in a row of pixels, once."""
    count = length + side - 1 if uniform_sampling else length
    share = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    sides = torch.full((count, 1), float(side), dtype=torch.float64)
    options = {"uniform_sampling": uniform_sampling}
    return place_boxes(share[:, None], sides, (length,), **options)


@pytest.mark.parametrize(("side", "length"), list(itertools.product(range(1, 9), range(1, 8))))
def test_uniform_boxes_cover_every_pixel_equally_often(side, length):
    covered = inside(all_places(side, length, True), (length,), torch.device("cpu"))

    assert covered.sum(0).tolist() == [side] * length
    assert covered.any(1).all()  # and each of them covers one at least


@pytest.mark.parametrize(("side", "length"), [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5), (8, 5)])
def test_the_centre_of_a_box_is_any_pixel_equally_often(side, length):
    boxes = all_places(side, length, False)

    assert (boxes[:, 0, 1] - boxes[:, 0, 0]).tolist() == [side] * length
    assert (boxes[:, 0, 0] + side // 2).tolist() == list(range(length))


@pytest.mark.parametrize("uniform_sampling", [False, True])
def test_a_box_without_pixels_covers_none(uniform_sampling):
    boxes = draw_boxes(
        torch.zeros(50, 2, dtype=torch.float64),
        (3, 4),
        uniform_sampling=uniform_sampling,
        generator=torch.Generator().manual_seed(0),
    )

    assert not inside(clip_boxes(boxes, (3, 4)), (3, 4), torch.device("cpu")).any()


def test_the_largest_share_is_still_within():
    almost = torch.tensor([[1 - 2**-53]], dtype=torch.float64)
    for length, side in itertools.product([1, 3, 7, 224, 1000], [1, 2, 5]):
        sides = torch.tensor([[float(side)]], dtype=torch.float64)

        centred = place_boxes(almost, sides, (length,), uniform_sampling=False)[0, 0]
        uniform = place_boxes(almost, sides, (length,), uniform_sampling=True)[0, 0]

        assert centred[0] + side // 2 == length - 1
        assert uniform[0] == length - 1


@pytest.mark.parametrize("size", [(5,), (3, 4), (2, 3, 4)])
def test_a_mask_is_what_slices_select(size):
    generator = torch.Generator().manual_seed(1)
    sides = torch.randint(4, (20, len(size)), generator=generator).double()
    boxes = draw_boxes(sides, size, uniform_sampling=True, generator=generator)

    masks = inside(boxes, size, torch.device("cpu"))

    for mask, box in zip(masks, boxes.tolist(), strict=True):
        expected = torch.zeros(size, dtype=torch.bool)
        expected[clip_region(box, size)] = True
        assert torch.equal(mask, expected)


def test_a_box_is_clipped_as_a_region_as_in_a_tensor():
    boxes = torch.tensor([[[-5, -1], [2, 9]], [[0, 3], [7, 8]], [[1, 2], [5, 5]]])

    regions = [clip_region(box, (3, 4)) for box in boxes.tolist()]

    corners = [[[side.start, side.stop] for side in region] for region in regions]
    assert corners == clip_boxes(boxes, (3, 4)).tolist()


def test_numbers_are_read_on_the_cpu_only():
    assert numbers(torch.tensor([[1, 2]])) == [[1, 2]]
    assert numbers(torch.empty(2, device="meta")) is None


def test_under_vmap_there_are_no_numbers():
    seen = []
    torch.func.vmap(lambda row: seen.append(numbers(row)) or row)(torch.zeros(3, 2))

    assert seen == [None]
