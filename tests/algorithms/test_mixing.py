"""MixUp and CutMix in the loop: the targets or the losses of the pairs of their functions."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from composable import Event, Key, choose
from composable.algorithms import CutMix, MixUp
from composable.functional import cutmix, mixup
from tests.support.data import batches
from tests.support.models import CLASSES, seeded, weights
from tests.support.observers import Watch
from tests.support.runs import make_trainer, sgd

OPTIONS = [
    *((MixUp, {"alpha": 0.4, "per_sample": each}) for each in (False, True)),
    (CutMix, {}),
    (CutMix, {"per_sample": True}),
    (CutMix, {"uniform_sampling": True, "alpha": 0.5}),
]
BOTH = pytest.mark.parametrize(("algorithm", "options"), OPTIONS)


def images(sizes=(4, 4, 4)):
    return [(x.reshape(-1, 1, 6, 6), y) for x, y in batches(sizes, features=36)]


def model():
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES)))


def train(*algorithms, data=None, net=None, **changes):
    options = {"train_dataloader": data or images(), "max_duration": "1ep", **changes}
    return make_trainer(net or model(), algorithms=algorithms, **options).fit()


def by_hand(algorithm, loss_of, **options):
    """Train a plain loop with the function."""
    function, net = {MixUp: mixup, CutMix: cutmix}[algorithm], model()
    optimizer = sgd(net.parameters())
    for step, (inputs, targets) in enumerate(images()):
        generator = Key(17).fold(algorithm.__name__, step).generator()
        mixed = function(inputs, targets, generator=generator, **options)
        loss_of(mixed, net(mixed.inputs)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(net)


@BOTH
def test_matches_a_plain_loop_with_soft_targets(algorithm, options):
    def loss(mixed, outputs):
        return cross_entropy(outputs, mixed.soft_targets(CLASSES))

    ours = weights(train(algorithm(**options)).model)

    assert_close(ours, by_hand(algorithm, loss, **options), rtol=0, atol=0)


@BOTH
def test_interpolated_losses_are_those_of_the_formula_and_of_soft_targets(algorithm, options):
    def loss(mixed, outputs):
        first = cross_entropy(outputs, mixed.targets, reduction="none")
        second = cross_entropy(outputs, mixed.partner_targets, reduction="none")
        return (mixed.weight * first + (1 - mixed.weight) * second).mean()

    ours = weights(train(algorithm(interpolate_loss=True, **options)).model)

    assert_close(ours, by_hand(algorithm, loss, **options))
    assert_close(ours, weights(train(algorithm(**options)).model))


def test_cutmix_pastes_the_class_of_each_pixel_with_the_pixel():
    data = [(x, (x[:, 0] > 0).long()) for x, _ in images()]
    for x, _ in data:
        x[:, :, 0] = 0.5
    data[0][1][:, 0] = -100  # ignored by the loss
    watch = Watch(Event.BEFORE_FORWARD, read=lambda s: (s.inputs, s.targets.targets))
    net = seeded(lambda: nn.Conv2d(1, 2, 3, padding=1))

    train(CutMix(interpolate_loss=True), data=data, net=net, callbacks=[watch])

    for (x, y), (_, before) in zip(watch.values, data, strict=True):
        assert torch.equal(y[:, 1:], (x[:, 0, 1:] > 0).long())
        assert torch.equal(y == -100, before == -100)


def test_choose_mixes_each_batch_in_one_of_two_ways():
    data, watch = images([4] * 12), Watch(Event.BEFORE_FORWARD, read=lambda s: s.inputs)

    train(choose([CutMix(), MixUp(1.0)]), data=data, callbacks=[watch])

    # A pasted pixel occurs in the original batch; a blended one does not.
    pairs = zip(watch.values, data, strict=True)
    assert {bool(torch.isin(seen, before).all()) for seen, (before, _) in pairs} == {True, False}


def test_rejects_outputs_that_are_not_logits():
    class Pair(nn.Linear):
        def forward(self, inputs):
            return {"logits": super().forward(inputs)}

    def loss_fn(outputs, targets):
        return cross_entropy(outputs["logits"], targets)

    with pytest.raises(TypeError, match=r"must be logits of .*not a dict.*interpolate_loss=True"):
        train(MixUp(), net=Pair(4, CLASSES), data=batches(12), loss_fn=loss_fn)
