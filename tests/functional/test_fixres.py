"""FixRes: sizes, the formula of the paper, and evaluations."""

import pytest
import torch
from torch.nn.functional import interpolate

from composable.algorithms import FixRes
from composable.functional import fixres, fixres_scale
from tests.support.runs import VISION


@pytest.mark.parametrize(
    ("shape", "scale", "increment", "expected"),
    [
        ((2, 3, 8, 12), 1.25, 1, (10, 15)),
        ((2, 3, 8, 12), 1.25, 4, (12, 16)),
        ((2, 3, 5), 2, 1, (10,)),
        ((2, 3, 4, 4, 4), 1.5, 1, (6, 6, 6)),
        ((2, 3, 8, 8), 0.01, 1, (1, 1)),
    ],
)
def test_new_lengths_are_the_nearest_multiples(shape, scale, increment, expected):
    new = fixres(torch.rand(shape), scale_factor=scale, size_increment=increment)

    assert new.shape == (*shape[:2], *expected)


def test_scale_one_is_the_identity():
    images = torch.rand(2, 3, 8, 8)

    assert fixres(images, scale_factor=1) is images


def test_images_are_interpolated_linearly_and_integers_rounded():
    images = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    exact = interpolate(images.float(), size=(10, 10), mode="bilinear")

    assert torch.equal(fixres(images.float()), exact)
    assert torch.equal(fixres(images), exact.round().to(torch.uint8))


def test_scale_matches_the_sizes_of_objects_in_the_paper():
    # 224 in training, and a crop of 224 of images of 256: objects appear at 0.80 of their size.
    assert 0.875 / fixres_scale() / 0.875 == pytest.approx(0.80 * 1.0, abs=0.01)
    sides = (0.08 + 0.92 * torch.rand(10**6, generator=torch.Generator().manual_seed(0))).sqrt()
    assert fixres_scale(test_crop=1.0) == pytest.approx(1 / float(sides.mean()), rel=1e-3)
    assert fixres_scale(area=(0.25, 0.25), test_crop=0.5, train_zoom=3) == 3.0


def test_dense_targets_are_refused():
    x = torch.rand(2, 2, 5, 5)
    trainer = VISION.trainer(
        torch.nn.Conv2d(2, 3, 1),
        loader=[(x, torch.zeros(2, 5, 5).long())],
        eval_dataloader=[(x, torch.zeros(2, 5, 5).long())],
        algorithms=[FixRes()],
    )

    with pytest.raises(ValueError, match=r"FixRes can't resize targets \(2, 5, 5\)"):
        trainer.eval()
