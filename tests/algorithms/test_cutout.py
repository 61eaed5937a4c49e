"""CutOut in the loop does what the function does, with the generator of its name and step."""

from torch import nn

from composable import Event
from composable.algorithms import CutOut, MixUp
from tests.support.tiny import CLASSES, Watch, batches, make_trainer, seeded


def images():
    return [(x.reshape(-1, 1, 6, 6), y) for x, y in batches(features=36)]


def watched(event, algorithms, **changes):
    """Return the batches at an event."""
    watch = Watch(event, read=lambda s: s.batch)
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES)))
    defaults = {"train_dataloader": images(), "max_duration": "1ep"}
    make_trainer(model, algorithms=algorithms, callbacks=[watch], **{**defaults, **changes}).fit()
    return watch.values


def test_it_comes_before_examples_are_mixed():
    for order in ([CutOut(), MixUp(1.0)], [MixUp(1.0), CutOut()]):
        before = watched(Event.BATCH_START, order)
        assert all((x == 0).any() for x, _ in before)
