"""ColOut in the loop: targets that are not tensors."""

from torch import nn

from composable import Event
from composable.algorithms import ColOut
from tests.support.data import batches
from tests.support.models import linear
from tests.support.observers import Watch
from tests.support.runs import make_trainer


def test_targets_that_are_not_tensors_are_not_modified():
    data = [(x.reshape(-1, 1, 8, 12), {"label": y}) for x, y in batches(12, features=96)]
    watch = Watch(Event.BATCH_START, read=lambda s: s.batch)

    make_trainer(
        nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), linear()),
        train_dataloader=data,
        loss_fn=lambda outputs, y: nn.functional.cross_entropy(outputs, y["label"]),
        max_duration="1ep",
        algorithms=[ColOut()],
        callbacks=[watch],
    ).fit()

    for (x, y), (_, before) in zip(watch.values, data, strict=True):
        assert x.shape == (4, 1, 7, 10)
        assert y is before
