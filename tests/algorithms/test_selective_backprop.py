"""Selective backprop in the loop does what the function does, and leaves no trace."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, interpolate, mse_loss
from torch.testing import assert_close

from composable import Event, IdleAlgorithmWarning
from composable.algorithms import SelectiveBackprop
from composable.batches.spec import BatchSpec
from composable.losses.loss import TargetLoss
from composable.models import Classifier
from tests.support.data import batches
from tests.support.models import CLASSES, linear, same, seeded, weights
from tests.support.observers import Watch
from tests.support.runs import make_trainer

ALWAYS = {"start": 0.0, "end": 1.0, "interrupt": 0}


def sizes(data=None, **options):
    watch = Watch(Event.BATCH_START, read=lambda s: len(s.inputs))
    make_trainer(
        train_dataloader=data or batches([4] * 5),
        algorithms=[SelectiveBackprop(**options)],
        callbacks=[watch],
    ).fit()
    return watch.values


def test_selects_from_start_to_end_except_in_interrupted_batches():
    # Ten batches: elapsed 0.0, 0.1, ..., 0.9.
    assert sizes(start=0.5, end=0.9, interrupt=0) == [4] * 5 + [2] * 4 + [4]
    assert sizes(start=0.2, end=0.8, interrupt=2) == [4, 4, 2, 4, 2, 4, 2, 4, 4, 4]
    with pytest.warns(IdleAlgorithmWarning, match="no batch lies between start=0.5 and end=0.5"):
        assert sizes(start=0.5, end=0.5, interrupt=0) == [4] * 10
    assert sizes(keep=0.25, **ALWAYS) == [1] * 10


def noisy():
    return seeded(lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, CLASSES)))


def test_scoring_leaves_statistics_generators_and_gradients_as_they_were():
    trainer = make_trainer(noisy())
    state = trainer.state.evolve(batch=batches([8])[0], max_duration=trainer.state.max_duration)
    before, generator = weights(state.model), torch.get_rng_state()

    losses = SelectiveBackprop(**ALWAYS).score(state)

    assert losses.shape == (8,)
    assert not losses.requires_grad
    assert same(weights(state.model), before)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(p.grad is None for p in state.model.parameters())


def test_rejects_scale_factor_for_inputs_without_a_size():
    state = make_trainer().state.evolve(batch=batches(12)[0])

    with pytest.raises(ValueError, match=r"scale_factor=0.5 must be 1.0 unless inputs"):
        SelectiveBackprop(scale_factor=0.5).score(state)


@pytest.mark.parametrize(
    "loss_fn",
    [cross_entropy, nn.CrossEntropyLoss(), lambda *both: cross_entropy(*both), mse_loss],
    ids=["function", "module", "without reduction", "several dimensions"],
)
def test_losses_of_examples_are_means_over_each_example(loss_fn):
    outputs, targets = torch.randn(4, 3, 5), torch.randint(CLASSES, (4, 5))
    if loss_fn is mse_loss:
        targets = outputs + 1 + torch.rand(4, 3, 5)

    losses = TargetLoss(loss_fn, BatchSpec()).per_example(outputs, (None, targets))

    each = [
        loss_fn(*(one.unsqueeze(0) for one in pair)) for pair in zip(outputs, targets, strict=True)
    ]
    assert_close(losses, torch.stack(each))


@pytest.mark.parametrize("scale_factor", [1.0, 0.5])
def test_scores_are_the_losses_of_examples_that_may_be_smaller(scale_factor):
    model = seeded(
        lambda: nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4, CLASSES))
    )
    ((inputs, targets),) = batches([8], features=64)
    images = inputs.reshape(8, 1, 8, 8)
    state = make_trainer(model).state.evolve(batch=(images, targets))

    losses = SelectiveBackprop(scale_factor=scale_factor).score(state)

    scored = interpolate(images, scale_factor=scale_factor, mode="bilinear")
    assert_close(losses, cross_entropy(model(scored), targets, reduction="none").detach())


def test_scores_are_those_of_the_loss_of_a_model():
    model = Classifier(linear(), input_key="x", target_key="y")
    ((inputs, targets),) = batches([8])
    batch = {"x": inputs, "y": targets}
    trainer = make_trainer(model, loss_fn=None, train_dataloader=[batch], input_key="x")

    losses = SelectiveBackprop().score(trainer.state.evolve(batch=batch))

    assert_close(losses, cross_entropy(model(batch), targets, reduction="none").detach())


def test_every_value_of_an_example_is_selected_and_fetched_samples_are_counted():
    data = [{"x": x, "y": y, "id": torch.arange(4), "name": "a"} for x, y in batches(12)]
    watch = Watch(Event.BATCH_START, read=lambda s: s.batch)

    state = make_trainer(
        train_dataloader=data,
        input_key="x",
        target_key="y",
        algorithms=[SelectiveBackprop(**ALWAYS)],
        callbacks=[watch],
    ).fit()

    for kept, whole in zip(watch.values, 2 * data, strict=True):
        assert torch.equal(kept["x"], whole["x"][kept["id"]])
        assert torch.equal(kept["y"], whole["y"][kept["id"]])
        assert kept["name"] == "a"
    assert state.timestamp.sample == 24
