"""The places of boxes, all of them; property_tests/test_batch_methods.py has what they cover."""

import itertools

import pytest
import torch

from composable._support.devices import numbers
from composable.functional._boxes import inside, place_boxes


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
def test_centres_of_boxes_are_uniform(side, length):
    boxes = all_places(side, length, False)

    assert (boxes[:, 0, 1] - boxes[:, 0, 0]).tolist() == [side] * length
    assert (boxes[:, 0, 0] + side // 2).tolist() == list(range(length))


def test_largest_draw_is_within_the_image():
    almost = torch.tensor([[1 - 2**-53]], dtype=torch.float64)
    for length, side in itertools.product([1, 3, 7, 224, 1000], [1, 2, 5]):
        sides = torch.tensor([[float(side)]], dtype=torch.float64)

        centred = place_boxes(almost, sides, (length,), uniform_sampling=False)[0, 0]
        uniform = place_boxes(almost, sides, (length,), uniform_sampling=True)[0, 0]

        assert centred[0] + side // 2 == length - 1
        assert uniform[0] == length - 1


def test_numbers_are_read_only_on_the_cpu_and_outside_of_vmap():
    seen = []
    torch.func.vmap(lambda row: seen.append(numbers(row)) or row)(torch.zeros(3, 2))

    assert numbers(torch.tensor([[1, 2]])) == [[1, 2]]
    assert numbers(torch.empty(2, device="meta")) is None
    assert seen == [None]
