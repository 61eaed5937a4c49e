"""Gyro dropout: a few masks, each used for several steps, and determined by the seed."""

from collections import Counter

import pytest
import torch
from torch import nn

from composable.algorithms import GyroDropout
from composable.functional import GyroDropoutLayer, gyro_dropout
from tests.support.data import batches, stream
from tests.support.runs import make_trainer
from tests.support.tensors import seeded


def layer(p=0.5, sigma=8, tau=2, stay=3, seed=0):
    return GyroDropoutLayer(p, sigma=sigma, tau=tau, stay=stay, generator=seeded(seed))


def used(dropout, x):
    """Return the masks of a call as tuples, one per slice."""
    outputs, tau = dropout(x), dropout.tau
    rows = [outputs[-(-len(x) * j // tau)] for j in range(tau)]
    return [tuple((row != 0).flatten().tolist()) for row in rows]


@pytest.mark.parametrize("batch", [0, 1, 2, 3, 5, 7, 8, 9])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_batch_is_divided_evenly_among_masks(batch, dtype):
    outputs = layer(p=0.75, tau=4)(torch.full((batch, 60), 2.0, dtype=dtype))

    rows = [tuple(row.tolist()) for row in outputs]
    counts = Counter(rows)
    assert outputs.shape == (batch, 60)
    assert outputs.dtype == dtype
    assert set(outputs.unique().tolist()) <= {0.0, 8.0}
    assert len(counts) == min(batch, 4)
    assert rows == sorted(rows, key=list(counts).index)  # each mask has a slice
    assert not counts or max(counts.values()) - min(counts.values()) <= 1
    assert torch.equal(outputs.float(), layer(p=0.75, tau=4)(torch.full((batch, 60), 2.0)))


def test_each_mask_is_used_equally_long():
    dropout, x = layer(sigma=8, tau=2, stay=3), torch.ones(2, 64)

    steps = [used(dropout, x) for _ in range(2 * 8 // 2 * 3)]

    for i in range(0, len(steps), 3):
        assert steps[i] == steps[i + 1] == steps[i + 2]
    rounds = [[mask for step in half for mask in step] for half in (steps[:12], steps[12:])]
    for masks in rounds:
        assert len(set(masks)) == 8
        assert set(Counter(masks).values()) == {3}
    assert set(rounds[0]) == set(rounds[1])  # the same masks
    assert rounds[0] != rounds[1]  # in another order


@pytest.mark.parametrize(("sigma", "tau"), [(5, 2), (3, 3), (1, 1)])
def test_sigma_need_not_be_a_multiple_of_tau(sigma, tau):
    dropout, x = layer(sigma=sigma, tau=tau, stay=1), torch.ones(tau, 64)

    masks = Counter(mask for _ in range(sigma) for mask in used(dropout, x))

    assert len(masks) == sigma
    assert set(masks.values()) == {tau}


def test_masks_are_spread_over_the_training_run():
    options = {"sigma": 256, "tau": 16, "iters_per_epoch": 100, "generator": seeded()}

    assert gyro_dropout(nn.Dropout(), max_epoch=8, **options).stay == 50
    assert gyro_dropout(nn.Dropout(), max_epoch=1, **options).stay == 6
    options["iters_per_epoch"] = 1  # a run of fewer steps than there are masks
    assert gyro_dropout(nn.Dropout(), max_epoch=1, **options).stay == 1


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_entries_are_dropped_independently_at_the_given_rate(p):
    dropout = layer(p=p, sigma=256, tau=256, stay=1)

    kept = (dropout(torch.ones(256, 400)) != 0).double()

    deviation = (p * (1 - p)) ** 0.5
    assert abs(kept.mean() - (1 - p)) < 4 * deviation / 320
    assert (kept.mean(0) - (1 - p)).abs().max() < 6 * deviation / 16
    assert (kept.mean(1) - (1 - p)).abs().max() < 6 * deviation / 20
    # Two masks, or two features, have no more in common than chance gives them.
    for matrix in (kept, kept.T):
        correlations = torch.corrcoef(matrix).fill_diagonal_(0)
        assert abs(correlations.std() * matrix.shape[1] ** 0.5 - 1) < 0.05


def test_is_the_identity_in_evaluation_and_for_a_probability_of_zero():
    x, dropout = torch.ones(4, 3), layer().eval()

    assert dropout(x) is x
    assert dropout.steps == 0
    assert layer(p=0)(x) is x
    assert layer()(torch.tensor(1.0)).item() in (0.0, 2.0)


def test_layers_of_a_model_have_different_masks():
    kinds = [nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.Dropout]
    model = nn.Sequential(*(kind() for kind in kinds))
    new = gyro_dropout(model, iters_per_epoch=9, max_epoch=9, generator=seeded())
    x = torch.ones(16, 64)

    assert [type(module) for module in new] == [GyroDropoutLayer, *kinds[1:3], GyroDropoutLayer]
    assert new[0].seed != new[3].seed
    assert not torch.equal(new[0](x), new[3](x))


def test_masks_of_a_seed_match_known_values():
    kept = (layer(sigma=4, tau=2, stay=1)(torch.ones(2, 16)) != 0).int().tolist()

    assert layer().seed.item() == 608416988
    assert ["".join(map(str, row)) for row in kept] == ["0001101011110100", "0010001001000111"]


# --- the algorithm ---

OPTIONS = {"sigma": 4, "tau": 2}


@pytest.mark.parametrize(("duration", "stay"), [("2ep", 3), ("6ba", 3), ("12ba", 6)])
def test_masks_are_spread_over_the_batches_of_the_run(duration, stay):
    trainer = make_trainer(
        nn.Sequential(nn.Dropout(), nn.Linear(4, 3)),
        algorithms=[GyroDropout(**OPTIONS)],
        max_duration=duration,
    )

    assert trainer.state.model[0].stay == stay


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_duration": None}, "max_duration='None' must be in epochs or batches"),
        ({"max_duration": "1h"}, "must be in epochs or batches, over which GyroDropout"),
        ({"train_dataloader": stream()}, "because the loader has no length"),
    ],
)
def test_rejects_runs_of_unknown_length(changes, message):
    arguments = {"train_dataloader": batches(12), **changes}
    with pytest.raises(ValueError, match=message):
        make_trainer(nn.Sequential(nn.Dropout()), algorithms=[GyroDropout()], **arguments)
