"""ProgressiveResizing in the loop does what the functions do, at every legal setting."""

import pytest
import torch
from torch import nn

from composable import Event
from composable.algorithms import ProgressiveResizing
from tests.support.data import batches
from tests.support.models import CLASSES, seeded
from tests.support.observers import Watch
from tests.support.runs import make_trainer


def images(count=3):
    return [(x.reshape(-1, 1, 8, 12), y) for x, y in batches([4] * count, features=96)]


def model():
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(2, CLASSES),
        )
    )


def watched(data=None, event=Event.BATCH_START, net=None, **options):
    changes = {name: options.pop(name) for name in ("eval_dataloader",) if name in options}
    watch = Watch(event, read=lambda s: s.batch)
    make_trainer(
        net or model(),
        train_dataloader=data or images(),
        algorithms=[ProgressiveResizing(**options)],
        callbacks=[watch],
        **changes,
    ).fit()
    return watch.values


@pytest.mark.parametrize("mode", ["resize", "crop"])
def test_maps_of_targets_are_resized_along(mode):
    data = [(x, (x[:, 0] > 0).long()) for x, _ in images()]
    net = seeded(lambda: nn.Conv2d(1, 2, 3, padding=1))

    seen = watched(data, net=net, mode=mode, resize_targets=True)

    assert seen[0][1].shape == (4, 4, 8)  # of 8 and 12 halved, the nearest multiples of 4
    for x, y in seen:
        assert y.shape == (4, *x.shape[2:])
        assert mode == "resize" or torch.equal(y, (x[:, 0] > 0).long())


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"delay_fraction": 0.8, "finetune_fraction": 0.2},
        {"delay_fraction": 0.0, "finetune_fraction": 0.0},
        {"delay_fraction": 1.0, "finetune_fraction": 0.0},
        {"delay_fraction": 0.0, "finetune_fraction": 1.0},
        {"initial_scale": 0.001, "size_increment": 1},
        {"size_increment": 100, "mode": "crop"},
    ],
)
def test_short_runs_and_every_legal_setting_work(count, options):
    assert len(watched(images(count), **options)) == 2 * count


def test_signals_are_resized_too():
    data = [(x.reshape(4, 1, 96), y) for x, y in images()]
    net = seeded(lambda: nn.Sequential(nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(4, 3)))

    assert watched(data, net=net)[0][0].shape == (4, 1, 48)
