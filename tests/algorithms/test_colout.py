"""ColOut in the loop does what the function does, with the generator of its name and step."""

import torch
from torch import nn

from composable import Event
from composable.algorithms import ColOut
from tests.support.data import batches
from tests.support.models import CLASSES, seeded
from tests.support.observers import Watch
from tests.support.runs import make_trainer


def images():
    return [(x.reshape(-1, 1, 8, 12), y) for x, y in batches(12, features=96)]


def model():
    return seeded(
        lambda: nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4, CLASSES))
    )


def watched(data, event=Event.BATCH_START, net=None, options=None, **changes):
    watch = Watch(event, read=lambda s: s.batch)
    defaults = {"train_dataloader": data, "max_duration": "1ep"}
    algorithms = [ColOut(**(options or {}))]
    make_trainer(
        net or model(), algorithms=algorithms, callbacks=[watch], **{**defaults, **changes}
    ).fit()
    return watch.values


def test_maps_of_targets_stay_in_line():
    data = [(x, (x[:, 0] > 0).long()) for x, _ in images()]

    for x, y in watched(data, net=seeded(lambda: nn.Conv2d(1, 2, 3, padding=1))):
        assert x.shape == (4, 1, 7, 10)
        assert torch.equal(y, (x[:, 0] > 0).long())


def test_targets_that_are_no_tensor_stay():
    data = [(x, {"label": y}) for x, y in images()]

    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets["label"])

    for (x, y), (_, before) in zip(watched(data, loss_fn=loss), data, strict=True):
        assert x.shape == (4, 1, 7, 10)
        assert y is before
