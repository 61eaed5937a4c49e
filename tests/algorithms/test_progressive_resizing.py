"""Progressive resizing in the loop: maps of targets are resized with their images."""

import pytest
import torch
from torch import nn

from composable import Event
from composable.algorithms import ProgressiveResizing
from tests.support.data import batches
from tests.support.models import seeded
from tests.support.observers import Watch
from tests.support.runs import make_trainer


@pytest.mark.parametrize("mode", ["resize", "crop"])
def test_maps_of_targets_are_resized_with_the_images(mode):
    images = [x.reshape(-1, 1, 8, 12) for x, _ in batches(12, features=96)]
    watch = Watch(Event.BATCH_START, read=lambda s: s.batch)

    make_trainer(
        seeded(lambda: nn.Conv2d(1, 2, 3, padding=1)),
        train_dataloader=[(x, (x[:, 0] > 0).long()) for x in images],
        algorithms=[ProgressiveResizing(mode, resize_targets=True)],
        callbacks=[watch],
    ).fit()

    assert watch.values[0][1].shape == (4, 4, 8)  # half of 8 and 12, in multiples of 4
    for x, y in watch.values:
        assert y.shape == (4, *x.shape[2:])
        assert mode == "resize" or torch.equal(y, (x[:, 0] > 0).long())


def test_a_crop_of_images_alone_is_refused_for_maps_of_targets():
    x = torch.rand(4, 1, 8, 12)
    trainer = make_trainer(
        seeded(lambda: nn.Conv2d(1, 2, 3, padding=1)),
        train_dataloader=[(x, (x[:, 0] > 0).long())],
        algorithms=[ProgressiveResizing("crop")],
    )

    with pytest.raises(ValueError, match=r"uncropped targets \(4, 8, 12\).*resize_targets=True"):
        trainer.fit()
