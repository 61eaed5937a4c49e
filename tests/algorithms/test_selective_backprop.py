"""Selective backprop in the loop does what the function does, and leaves no trace."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, interpolate, mse_loss

from composable import Event, IdleAlgorithmWarning
from composable.algorithms import SelectiveBackprop
from composable.core.batch import BatchSpec
from composable.core.loss import TargetLoss
from tests.support.tiny import CLASSES, Watch, batches, linear, make_trainer, same, seeded, weights

ALWAYS = {"start": 0.0, "end": 1.0, "interrupt": 0}


def sizes(data=None, **options):
    watch = Watch(Event.BATCH_START, read=lambda s: len(s.inputs))
    make_trainer(
        train_dataloader=data or batches([4] * 5),
        algorithms=[SelectiveBackprop(**options)],
        callbacks=[watch],
    ).fit()
    return watch.values


def test_it_selects_from_start_to_end_and_not_in_the_interrupted_batches():
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


@pytest.mark.parametrize(
    "loss_fn",
    [
        cross_entropy,
        nn.CrossEntropyLoss(),
        lambda outputs, targets: cross_entropy(outputs, targets),
    ],
    ids=["function", "module", "without reduction"],
)
def test_losses_of_examples_are_found_for_any_mean_loss(loss_fn):
    model, (inputs, targets) = linear(), batches([8])[0]
    state = make_trainer(model, loss_fn=loss_fn).state.evolve(batch=(inputs, targets))

    losses = SelectiveBackprop().score(state)

    expected = cross_entropy(model(inputs), targets, reduction="none")
    torch.testing.assert_close(losses, expected.detach())
    if isinstance(loss_fn, nn.Module):
        assert loss_fn.reduction == "mean"  # the user's own stays


def test_losses_of_examples_are_found_for_the_loss_of_a_model():
    class WithLoss(nn.Linear):
        def forward(self, batch):
            return super().forward(batch["x"])

        def loss(self, outputs, batch):
            return cross_entropy(outputs, batch["y"])

    model = seeded(lambda: WithLoss(4, CLASSES))
    inputs, targets = batches([8])[0]
    batch = {"x": inputs, "y": targets}
    trainer = make_trainer(model, loss_fn=None, train_dataloader=[batch], input_key="x")

    losses = SelectiveBackprop().score(trainer.state.evolve(batch=batch))

    expected = cross_entropy(model(batch), targets, reduction="none")
    torch.testing.assert_close(losses, expected.detach())


def test_all_that_has_a_value_for_each_example_is_selected():
    data = [
        {
            "x": x,
            "y": y,
            "id": torch.arange(4),
            "names": ["0", "1", "2", "3"],
            "scale": torch.tensor(2.0),
            "size": (2, 1, 2, 1),
            "name": "a",
        }
        for x, y in batches()
    ]
    watch = Watch(Event.BATCH_START, read=lambda s: s.batch)

    make_trainer(
        train_dataloader=data,
        input_key="x",
        target_key="y",
        algorithms=[SelectiveBackprop(**ALWAYS)],
        callbacks=[watch],
    ).fit()

    for kept, whole in zip(watch.values, 2 * data, strict=True):
        assert torch.equal(kept["x"], whole["x"][kept["id"]])
        assert torch.equal(kept["y"], whole["y"][kept["id"]])
        assert kept["names"] == [str(i) for i in kept["id"].tolist()]
        assert (kept["scale"], kept["size"], kept["name"]) == (whole["scale"], (2, 1, 2, 1), "a")


def test_smaller_inputs_may_be_scored():
    model = seeded(
        lambda: nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4, CLASSES))
    )
    inputs, targets = batches([8], features=64)[0]
    images = inputs.reshape(8, 1, 8, 8)
    state = make_trainer(model).state.evolve(batch=(images, targets))

    losses = SelectiveBackprop(scale_factor=0.5).score(state)

    small = interpolate(images, scale_factor=0.5, mode="bilinear")
    torch.testing.assert_close(
        losses, cross_entropy(model(small), targets, reduction="none").detach()
    )


def test_inputs_without_a_size_can_not_be_scored_smaller():
    state = make_trainer().state.evolve(batch=batches()[0])

    with pytest.raises(ValueError, match=r"scale_factor=0.5 must be 1.0 unless inputs"):
        SelectiveBackprop(scale_factor=0.5).score(state)


def test_the_timestamp_counts_what_was_fetched():
    now = make_trainer(algorithms=[SelectiveBackprop(**ALWAYS)]).fit().timestamp

    assert now.sample == 24


@pytest.mark.parametrize(
    "loss_fn",
    [mse_loss, nn.MSELoss(), lambda outputs, targets: mse_loss(outputs, targets)],
    ids=["function", "module", "without reduction"],
)
def test_the_loss_of_an_example_of_several_dimensions_is_its_mean(loss_fn):
    outputs, targets = torch.randn(3, 2, 5), torch.zeros(3, 2, 5)

    losses = TargetLoss(loss_fn, BatchSpec()).per_example(outputs, (None, targets))

    torch.testing.assert_close(losses, outputs.square().mean((1, 2)))
