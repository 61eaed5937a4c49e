"""RandAugment and AugMix in the loop do what their functions do."""

import pytest
import torch
from torch import nn

from composable import Event, Key
from composable.algorithms import AugMix, RandAugment
from composable.functional import augmix, randaugment
from tests.support.tiny import CLASSES, Watch, make_trainer, seeded

PAIRS = {
    RandAugment: (randaugment, {"severity": 5, "depth": 3, "augmentations": "original"}),
    AugMix: (augmix, {"severity": 5, "depth": 2, "width": 2, "alpha": 0.5}),
}
each = pytest.mark.parametrize("algorithm", list(PAIRS))
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def data(sizes=(4, 4, 4)):
    draw = torch.Generator().manual_seed(0)
    return [
        (torch.rand(n, 3, 8, 8, generator=draw), torch.randint(CLASSES, (n,), generator=draw))
        for n in sizes
    ]


def generator(batch, name):
    return Key(17).fold(name, batch).generator()


def net():
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, CLASSES)))


def seen(*algorithms, event=Event.BEFORE_FORWARD, **changes):
    watch = Watch(event, read=lambda s: s.inputs)
    make_trainer(
        net(),
        **{"train_dataloader": data(), "max_duration": "1ep"} | changes,
        algorithms=algorithms,
        callbacks=[watch],
    ).fit()
    return watch.values


@each
def test_normalized_images_are_augmented_as_they_were_before(algorithm):
    function, _ = PAIRS[algorithm]
    mean, std = (torch.tensor(v)[:, None, None] for v in (MEAN, STD))
    normalized = [((x - mean) / std, y) for x, y in data()]

    values = seen(algorithm(mean=MEAN, std=STD), train_dataloader=normalized)

    for step, (inputs, (images, _)) in enumerate(zip(values, data(), strict=True)):
        expected = function(images, generator=generator(step, algorithm.__name__))
        assert ((inputs * std + mean - expected).abs() > 1e-4).float().mean() < 0.02


@each
def test_uint8_images_stay_uint8(algorithm):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, images):
            return self.net(images / 255)

    batches = [((255 * x).to(torch.uint8), y) for x, y in data()]
    watch = Watch(Event.BEFORE_FORWARD, read=lambda s: s.inputs.dtype)
    make_trainer(
        seeded(Scaled), train_dataloader=batches, algorithms=[algorithm()], callbacks=[watch]
    ).fit()

    assert set(watch.values) == {torch.uint8}


@each
def test_normalized_images_are_floats(algorithm):
    batches = [((255 * x).to(torch.uint8), y) for x, y in data()]

    with pytest.raises(
        TypeError, match=r"images must be normalized.*torch.uint8; pass neither mean"
    ):
        seen(algorithm(mean=MEAN, std=STD), train_dataloader=batches)


@each
def test_inputs_that_are_no_images_are_refused(algorithm):
    batches = [((x, x), y) for x, y in data()]

    with pytest.raises(TypeError, match="images must be a tensor, not a tuple"):
        seen(algorithm(), train_dataloader=batches)
