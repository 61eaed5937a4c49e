"""Examples are selected by their losses; property_tests/test_functions.py has laws of any batch."""

from itertools import permutations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, interpolate, mse_loss
from torch.testing import assert_close

import composable.functional as F
from composable import Event, IdleAlgorithmWarning
from composable.algorithms import SelectiveBackprop
from composable.batches.spec import BatchSpec
from composable.losses.loss import TargetLoss
from composable.models import Classifier
from tests.support.data import batches
from tests.support.models import CLASSES, linear, same, weights
from tests.support.models import seeded as seeded_model
from tests.support.observers import Watch
from tests.support.runs import make_trainer
from tests.support.tensors import FLOATS, seeded


def losses(batch=8, dtype=torch.float32):
    return torch.randperm(batch, generator=seeded()).to(dtype)


def test_ranks_match_sampling_without_replacement(unchecked):
    n, keep, draws = 4, 0.5, 4000
    weights = [((rank + 0.5) / n) ** (1 / keep - 1) for rank in range(n)]
    expected = torch.zeros(n, dtype=torch.float64)  # how often each rank is among the two drawn
    for first, second in permutations(range(n), 2):
        chance = weights[first] / sum(weights)
        chance *= weights[second] / (sum(weights) - weights[first])
        expected[[first, second]] += chance
    generator = seeded()

    drawn = torch.stack([F.draw_selection(n, keep=keep, generator=generator) for _ in range(draws)])

    share = torch.bincount(drawn.flatten(), minlength=n).double() / draws
    assert_close(share, expected, rtol=0, atol=0.025)


@pytest.mark.parametrize(
    ("values", "ranks", "chosen"),
    [
        ([5.0, 1.0, 9.0, 3.0], [0, 3], [1, 2]),
        ([0.0] * 5, [0, 4], [0, 4]),  # of equal losses the earlier ranks lower
        ([1.0, float("nan"), float("inf")], [2], [1]),  # NaN ranks above all numbers
    ],
)
def test_selects_examples_by_rank(values, ranks, chosen):
    assert F.apply_selection(torch.tensor(values), torch.tensor(ranks)).tolist() == chosen


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64])
def test_selection_applies_the_draw_in_any_dtype(dtype):
    chosen = F.select_using_loss(losses(dtype=dtype), generator=seeded())

    assert chosen.dtype == torch.int64
    assert torch.equal(chosen, F.apply_selection(losses(), F.draw_selection(8, generator=seeded())))


# When


def test_selection_starts_at_its_start_and_stops_before_its_end():
    times = [0.0, 0.49, 0.5, 0.89, 0.9, 1.0]

    chosen = [F.should_select(time, 0, interrupt=0) for time in times]

    assert chosen == [False, False, True, True, False, False]


@pytest.mark.parametrize(
    ("interrupt", "pattern"),
    [(0, "111111"), (1, "000000"), (2, "101010"), (3, "110110")],
)
def test_interrupt_skips_every_nth_batch(interrupt, pattern):
    chosen = [F.should_select(0.7, batch, interrupt=interrupt) for batch in range(6)]

    assert "".join(str(int(c)) for c in chosen) == pattern


# The highest losses


@pytest.mark.parametrize(
    ("keep", "expected"), [(0.2, [4]), (0.5, [1, 4]), (0.6, [1, 3, 4]), (1.0, [0, 1, 2, 3, 4])]
)
def test_highest_losses_are_kept_in_the_order_of_the_batch(keep, expected):
    losses = torch.tensor([0.3, 2.0, -1.0, 0.5, 7.0])

    assert F.select_highest(losses, keep=keep).tolist() == expected


def test_one_example_is_kept_at_least_and_none_of_an_empty_batch():
    assert F.select_highest(torch.tensor([3.0]), keep=0.01).tolist() == [0]
    assert F.select_highest(torch.empty(0)).tolist() == []


def test_nan_ranks_above_all_and_later_examples_above_equal_ones():
    assert F.select_highest(torch.tensor([torch.nan, 9.0, torch.inf])).tolist() == [0, 2]
    assert F.select_highest(torch.ones(4)).tolist() == [2, 3]


def test_it_keeps_as_many_as_the_draw_by_ranks():
    losses = torch.rand(7)

    for keep in (0.1, 0.5, 0.79, 1.0):
        assert len(F.select_highest(losses, keep=keep)) == len(
            F.select_using_loss(losses, keep=keep)
        )
    assert torch.equal(
        F.select_highest(losses, keep=0.4), F.apply_selection(losses, torch.tensor([4, 5, 6]))
    )


# --- the algorithm ---

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
    return seeded_model(
        lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, CLASSES))
    )


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
    model = seeded_model(
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
