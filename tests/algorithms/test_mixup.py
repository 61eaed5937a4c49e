"""MixUp in the loop does what the function does, with the generator of its name and step."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from composable import Event, Key
from composable.algorithms import MixUp
from composable.functional import mixup
from tests.support.tiny import CLASSES, Watch, batches, linear, make_trainer, sgd, weights


def generator(batch, name="MixUp"):
    return Key(17).fold(name, batch).generator()


def by_hand(loss_of, **options):
    """Train a plain loop with the function."""
    model = linear()
    optimizer = sgd(model.parameters())
    for step, (inputs, targets) in enumerate(batches()):
        mixed = mixup(inputs, targets, generator=generator(step), **options)
        loss_of(mixed, model(mixed.inputs)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def trained(**options):
    trainer = make_trainer(algorithms=[MixUp(**options)], max_duration="1ep")
    trainer.fit()
    return weights(trainer.state.model)


@pytest.mark.parametrize("per_sample", [False, True])
def test_blended_targets_are_those_of_the_function(per_sample):
    ours = trained(alpha=0.4, per_sample=per_sample)

    theirs = by_hand(
        lambda mixed, outputs: cross_entropy(outputs, mixed.soft_targets(CLASSES)),
        alpha=0.4,
        per_sample=per_sample,
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_blended_losses_are_those_of_the_formula():
    ours = trained(alpha=0.4, interpolate_loss=True)

    def loss(mixed, outputs):
        first = cross_entropy(outputs, mixed.targets)
        second = cross_entropy(outputs, mixed.partner_targets)
        return mixed.weight * first + (1 - mixed.weight) * second

    torch.testing.assert_close(ours, by_hand(loss, alpha=0.4))


def test_blended_losses_of_weighted_examples_are_those_of_the_formula():
    ours = trained(alpha=0.4, interpolate_loss=True, per_sample=True)

    def loss(mixed, outputs):
        first = cross_entropy(outputs, mixed.targets, reduction="none")
        second = cross_entropy(outputs, mixed.partner_targets, reduction="none")
        return (mixed.weight * first + (1 - mixed.weight) * second).mean()

    torch.testing.assert_close(ours, by_hand(loss, alpha=0.4, per_sample=True))


@pytest.mark.parametrize("per_sample", [False, True])
def test_both_ways_are_one_for_cross_entropy(per_sample):
    torch.testing.assert_close(
        trained(per_sample=per_sample), trained(per_sample=per_sample, interpolate_loss=True)
    )


@pytest.mark.parametrize("interpolate_loss", [False, True])
def test_the_loss_of_the_step_is_the_one_of_a_known_draw(interpolate_loss):
    model = linear()
    inputs, targets = batches([4])[0]
    losses = Watch(Event.BATCH_END, read=lambda s: s.loss)
    make_trainer(
        model,
        train_dataloader=[(inputs, targets)],
        max_duration="1ba",
        algorithms=[MixUp(alpha=0.4, interpolate_loss=interpolate_loss)],
        callbacks=[losses],
    ).fit()

    permutation = torch.randperm(4, generator=generator(0))
    mixed = mixup(inputs, targets, alpha=0.4, generator=generator(0))
    w = mixed.weight
    assert torch.equal(mixed.partner_targets, targets[permutation])
    outputs = linear()(w * inputs + (1 - w) * inputs[permutation])
    expected = w * cross_entropy(outputs, targets) + (1 - w) * cross_entropy(
        outputs, targets[permutation]
    )
    torch.testing.assert_close(losses.values[0], expected.detach())


def test_outputs_that_are_no_logits_are_answered_with_the_other_way():
    class Pair(torch.nn.Linear):
        def forward(self, inputs):
            return {"logits": super().forward(inputs)}

    trainer = make_trainer(
        Pair(4, CLASSES),
        loss_fn=lambda o, t: cross_entropy(o["logits"], t),
        algorithms=[MixUp()],
    )

    with pytest.raises(TypeError, match=r"must be logits of .*not a dict.*interpolate_loss=True"):
        trainer.fit()


def test_inputs_of_several_tensors_are_refused():
    inputs, targets = batches()[0]

    with pytest.raises(TypeError, match=r"inputs must be a tensor, not a tuple.* apply_mixup"):
        make_trainer(train_dataloader=[((inputs, inputs), targets)], algorithms=[MixUp()]).fit()
