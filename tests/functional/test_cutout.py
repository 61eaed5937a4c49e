"""CutOut; the laws of its draw stand in test_draws.py, and of any batch in property_tests."""

import pytest
import torch

from composable.functional import apply_cutout, cutout, draw_cutout
from tests.support.tensors import seeded


@pytest.mark.parametrize(
    ("length", "size", "side"),
    [
        (0.5, (10, 12), 5),  # below 1, a share of the shorter side
        (0.26, (10, 12), 3),
        (0.5, (12, 7, 9), 4),
        (0.001, (10, 12), 1),  # at least a pixel
        (1, (10, 12), 1),  # from 1 on, pixels, also an odd number
        (5, (10, 12), 5),
        (1.0, (10, 12), 1),
        (11, (10, 12), 11),
        (0, (10, 12), 0),
    ],
)
def test_length_is_a_fraction_of_the_shorter_side_or_a_number_of_pixels(length, size, side):
    boxes = draw_cutout(1, size, length=length, generator=seeded())

    assert (boxes[..., 1] - boxes[..., 0]).flatten().tolist() == [side] * len(size)


def test_per_sample_gives_each_example_its_own_holes():
    own = cutout(torch.ones(50, 2, 8, 8), length=3, generator=seeded())
    shared = cutout(torch.ones(50, 2, 8, 8), length=3, per_sample=False, generator=seeded())

    assert len(own.unique(dim=0)) > 20
    assert len(shared.unique(dim=0)) == 1


def test_holes_remove_non_finite_values():
    x = torch.tensor([[[1.0, float("nan"), float("inf"), 4.0]]])
    hole = torch.tensor([[[1, 3]]])

    assert apply_cutout(x, hole).tolist() == [[[1, 0, 0, 4]]]
    assert apply_cutout(x, hole.unsqueeze(0)).tolist() == [[[1, 0, 0, 4]]]


def test_hole_matches_the_paper():
    """Centre (2, 5) and side 4 in a picture of 5 x 6: clipped at the right."""
    cut = apply_cutout(torch.ones(1, 1, 5, 6), torch.tensor([[[0, 4], [3, 7]]]))

    assert not cut[0, 0, :4, 3:].any()
    assert cut.sum() == 5 * 6 - 4 * 3
