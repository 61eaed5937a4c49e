"""Random translation; the laws of its draw stand in test_draws.py, and of any batch elsewhere."""

import pytest
import torch
from torch.nn.functional import pad

from composable.algorithms import RandomTranslation
from composable.functional import (
    apply_random_translation,
    draw_random_translation,
    random_translation,
)
from tests.support.runs import VISION
from tests.support.tensors import seeded


def test_each_image_is_a_crop_of_its_reflection():
    images, shifts = torch.randn(40, 3, 6, 9), draw_random_translation(40, (6, 9), max_shift=3)
    padded = pad(images, [3] * 4, mode="reflect")

    for image, (down, right), moved in zip(
        padded, 3 + shifts, apply_random_translation(images, shifts), strict=True
    ):
        assert torch.equal(image[:, down : down + 6, right : right + 9], moved)


def test_all_shifts_are_equally_likely():
    draw = draw_random_translation(9000, (5, 5), max_shift=1, generator=seeded())
    counts = torch.unique(draw, dim=0, return_counts=True)[1]

    assert len(counts) == 9
    assert counts.float().std() < 50


def test_shifts_are_less_than_the_sides():
    with pytest.raises(ValueError, match=r"max_shift=4 must be less than each side.*\(9, 4\)"):
        random_translation(torch.zeros(1, 1, 9, 4), max_shift=4)

    assert random_translation(torch.zeros(1, 1, 1, 1), max_shift=0).shape == (1, 1, 1, 1)


def test_dense_targets_move_with_their_images():
    images = torch.randn(8, 1, 6, 6)
    trainer = VISION.trainer(
        torch.nn.Conv2d(1, 1, 1),
        loader=[(images, images[:, 0].clone())],
        loss_fn=lambda outputs, targets: (outputs.mean() - targets.mean()) ** 2,
        algorithms=[RandomTranslation(3)],
        max_duration="1ba",
        callbacks=lambda event, state, logger: (
            seen.append((state.inputs, state.targets)) if event.value == "batch_end" else None
        ),
    )
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    trainer.fit()

    ((inputs, targets),) = seen
    assert torch.equal(inputs[:, 0], targets)
    assert not torch.equal(inputs, images)
