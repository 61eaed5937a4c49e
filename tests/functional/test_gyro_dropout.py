"""Gyro dropout: a few masks, each used for several steps, and determined by the seed."""

from collections import Counter

import pytest
import torch
from torch import nn

from composable.functional import GyroDropoutLayer, gyro_dropout


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def layer(p=0.5, sigma=8, tau=2, stay=3, seed=0):
    return GyroDropoutLayer(p, sigma=sigma, tau=tau, stay=stay, generator=generator(seed))


def used(dropout, x):
    """Return the masks of a call as tuples, one per slice."""
    outputs, tau = dropout(x), dropout.tau
    rows = [outputs[-(-len(x) * j // tau)] for j in range(tau)]
    return [tuple((row != 0).flatten().tolist()) for row in rows]


def test_each_slice_has_one_mask_and_scaled_values():
    dropout, x = layer(p=0.75, tau=4), torch.full((12, 50), 2.0)

    outputs = dropout(x)

    assert set(outputs.unique().tolist()) == {0.0, 8.0}
    slices = outputs.view(4, 3, 50)
    assert (slices == slices[:, :1]).all()
    assert len({tuple(rows[0].tolist()) for rows in slices}) == 4


@pytest.mark.parametrize("batch", [0, 1, 2, 3, 5, 7, 8, 9])
def test_batch_is_divided_evenly(batch):
    outputs = layer(tau=4)(torch.ones(batch, 60))

    counts = Counter(tuple(row.tolist()) for row in outputs)
    assert outputs.shape == (batch, 60)
    assert len(counts) == min(batch, 4)
    assert not counts or max(counts.values()) - min(counts.values()) <= 1


def test_takes_a_scalar():
    assert layer()(torch.tensor(1.0)).item() in (0.0, 2.0)


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
    options = {"sigma": 256, "tau": 16, "iters_per_epoch": 100, "generator": generator()}

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
    x = torch.ones(4, 3)
    dropout = layer().eval()

    assert dropout(x) is x
    assert dropout.steps == 0
    assert layer(p=0)(x) is x


def test_masks_of_a_seed_match_known_values():
    kept = (layer(sigma=4, tau=2, stay=1)(torch.ones(2, 16)) != 0).int().tolist()

    assert layer().seed.item() == PINNED[0]
    assert ["".join(map(str, row)) for row in kept] == PINNED[1:]


PINNED = [608416988, "0001101011110100", "0010001001000111"]


def test_layers_of_a_model_have_different_masks():
    model = nn.Sequential(nn.Dropout(), nn.Identity(), nn.Dropout())
    new = gyro_dropout(model, iters_per_epoch=9, max_epoch=9, generator=generator())
    x = torch.ones(16, 64)

    assert new[0].seed != new[2].seed
    assert not torch.equal(new[0](x), new[2](x))


def test_other_layers_of_dropout_are_not_replaced():
    others = [nn.Dropout2d(), nn.AlphaDropout()]
    new = gyro_dropout(
        nn.Sequential(nn.Dropout(), *others), iters_per_epoch=1, max_epoch=1, generator=generator()
    )

    assert [type(module) for module in new] == [GyroDropoutLayer, *map(type, others)]


def test_dropped_entries_get_no_gradient():
    dropout, x = layer(), torch.ones(4, 64).requires_grad_()

    outputs = dropout(x)
    outputs.sum().backward()

    assert torch.equal(x.grad, outputs)  # of ones: 2 where it is kept, 0 elsewhere


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_masks_do_not_depend_on_the_dtype(dtype):
    x = torch.ones(4, 8)

    outputs = layer()(x.to(dtype))

    assert outputs.dtype == dtype
    assert torch.equal(outputs.float(), layer()(x))


def test_vmap_matches_loop():
    x = torch.rand(3, 4, 8, generator=generator())

    outputs = torch.func.vmap(layer())(x)

    assert torch.equal(outputs, torch.stack([layer()(each) for each in x]))
