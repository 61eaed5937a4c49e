"""CutMix in the loop does what the function does, with the generator of its name and step."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from composable import Event, IncompatibleAlgorithmsError, Key, choose
from composable.algorithms import CutMix, MixUp
from composable.functional import cutmix
from tests.support.tiny import CLASSES, Watch, batches, make_trainer, seeded, sgd, weights


def images(sizes=(4, 4, 4)):
    return [(x.reshape(-1, 1, 6, 6), y) for x, y in batches(sizes, features=36)]


def model():
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES)))


def generator(batch, name="CutMix"):
    return Key(17).fold(name, batch).generator()


def trainer(data=None, **changes):
    defaults = {"train_dataloader": data or images(), "max_duration": "1ep"}
    return make_trainer(model(), **{**defaults, **changes})


def trained(**options):
    run = trainer(algorithms=[CutMix(**options)])
    run.fit()
    return weights(run.state.model)


def by_hand(loss_of, **options):
    """Train a plain loop with the function."""
    net = model()
    optimizer = sgd(net.parameters())
    for step, (inputs, targets) in enumerate(images()):
        mixed = cutmix(inputs, targets, generator=generator(step), **options)
        loss_of(mixed, net(mixed.inputs)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(net)


OPTIONS = [{}, {"per_sample": True}, {"uniform_sampling": True, "alpha": 0.5}]


@pytest.mark.parametrize("options", OPTIONS)
def test_blended_targets_are_those_of_the_function(options):
    theirs = by_hand(lambda mixed, out: cross_entropy(out, mixed.soft_targets(CLASSES)), **options)

    torch.testing.assert_close(trained(**options), theirs, rtol=0, atol=0)


@pytest.mark.parametrize("options", OPTIONS)
def test_blended_losses_are_those_of_the_formula(options):
    def loss(mixed, outputs):
        first = cross_entropy(outputs, mixed.targets, reduction="none")
        second = cross_entropy(outputs, mixed.partner_targets, reduction="none")
        return (mixed.weight * first + (1 - mixed.weight) * second).mean()

    ours = trained(interpolate_loss=True, **options)

    torch.testing.assert_close(ours, by_hand(loss, **options))
    torch.testing.assert_close(ours, trained(**options))


def test_a_class_for_each_pixel_is_pasted_with_its_pixel():
    data = [(x, (x[:, 0] > 0).long()) for x, _ in images()]
    for x, _ in data:
        x[:, :, 0] = 0.5
    data[0][1][:, 0] = -100  # ignored by the loss
    watch = Watch(Event.BEFORE_FORWARD, read=lambda s: (s.inputs, s.targets.targets))

    make_trainer(
        seeded(lambda: nn.Conv2d(1, 2, 3, padding=1)),
        train_dataloader=data,
        max_duration="1ep",
        algorithms=[CutMix(interpolate_loss=True)],
        callbacks=[watch],
    ).fit()

    for (x, y), (_, before) in zip(watch.values, data, strict=True):
        assert torch.equal(y[:, 1:], (x[:, 0, 1:] > 0).long())
        assert torch.equal(y == -100, before == -100)


def test_each_batch_may_be_mixed_in_one_of_two_ways():
    watch = Watch(Event.BEFORE_FORWARD, read=lambda s: s.inputs)
    trainer(images([4] * 12), algorithms=[choose([CutMix(), MixUp(1.0)])], callbacks=[watch]).fit()

    # A pasted pixel occurs in the original batch; a blended one does not.
    pasted = [
        bool(torch.isin(seen, before).all())
        for seen, (before, _) in zip(watch.values, images([4] * 12), strict=True)
    ]
    assert set(pasted) == {True, False}


def test_a_batch_is_mixed_once():
    with pytest.raises(IncompatibleAlgorithmsError, match="CutMix and MixUp are incompatible"):
        trainer(algorithms=[MixUp(), CutMix()])
