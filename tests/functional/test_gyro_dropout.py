"""The laws of gyro dropout: a few masks, each in use for a while, known from the seed."""

import copy
from collections import Counter

import pytest
import torch
from torch import nn
from torch.testing import assert_close

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


def test_slices_share_a_mask_and_what_is_kept_is_scaled():
    dropout, x = layer(p=0.75, tau=4), torch.full((12, 50), 2.0)

    outputs = dropout(x)

    assert set(outputs.unique().tolist()) == {0.0, 8.0}
    slices = outputs.view(4, 3, 50)
    assert (slices == slices[:, :1]).all()
    assert len({tuple(rows[0].tolist()) for rows in slices}) == 4


@pytest.mark.parametrize("batch", [0, 1, 2, 3, 5, 7, 8, 9])
def test_any_batch_is_divided_as_evenly_as_it_can_be(batch):
    outputs = layer(tau=4)(torch.ones(batch, 60))

    counts = Counter(tuple(row.tolist()) for row in outputs)
    assert outputs.shape == (batch, 60)
    assert len(counts) == min(batch, 4)
    assert not counts or max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("shape", [(), (6,), (6, 3), (6, 3, 4), (6, 3, 2, 2), (6, 1, 2, 3, 2)])
def test_any_rank_is_taken(shape):
    outputs = layer()(torch.ones(shape))

    assert outputs.shape == shape
    assert set(outputs.unique().tolist()) <= {0.0, 2.0}


def test_masks_stay_in_use_for_a_while_and_every_one_equally_long():
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
def test_tau_need_not_divide_sigma(sigma, tau):
    dropout, x = layer(sigma=sigma, tau=tau, stay=1), torch.ones(tau, 64)

    masks = Counter(mask for _ in range(sigma) for mask in used(dropout, x))

    assert len(masks) == sigma
    assert set(masks.values()) == {tau}


def test_the_masks_of_a_training_are_spread_over_it():
    options = {"sigma": 256, "tau": 16, "iters_per_epoch": 100, "generator": generator()}

    assert gyro_dropout(nn.Dropout(), max_epoch=8, **options).stay == 50
    assert gyro_dropout(nn.Dropout(), max_epoch=1, **options).stay == 6
    options["iters_per_epoch"] = 1  # a run of fewer steps than there are masks
    assert gyro_dropout(nn.Dropout(), max_epoch=1, **options).stay == 1


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_entries_are_dropped_as_often_as_asked_and_independently(p):
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


def test_the_mean_over_the_masks_is_the_input():
    dropout, x = layer(p=0.3, sigma=2000, tau=2000, stay=1), torch.tensor([[3.0]]).expand(2000, 1)

    assert_close(dropout(x).mean(), torch.tensor(3.0), atol=0.15, rtol=0)


def test_evaluation_and_a_probability_of_zero_are_the_identity():
    x = torch.ones(4, 3)
    dropout = layer().eval()

    assert dropout(x) is x
    assert dropout.steps == 0
    assert layer(p=0)(x) is x


def test_masks_are_a_function_of_the_seed():
    x = torch.ones(4, 64)

    assert torch.equal(layer(seed=1)(x), layer(seed=1)(x))
    assert not torch.equal(layer(seed=1)(x), layer(seed=2)(x))


def test_the_masks_of_a_seed_are_pinned():
    kept = (layer(sigma=4, tau=2, stay=1)(torch.ones(2, 16)) != 0).int().tolist()

    assert layer().seed.item() == PINNED[0]
    assert ["".join(map(str, row)) for row in kept] == PINNED[1:]


PINNED = [608416988, "0001101011110100", "0010001001000111"]


def test_layers_of_a_model_have_masks_of_their_own():
    model = nn.Sequential(nn.Dropout(), nn.Identity(), nn.Dropout())
    new = gyro_dropout(model, iters_per_epoch=9, max_epoch=9, generator=generator())
    x = torch.ones(16, 64)

    assert new[0].seed != new[2].seed
    assert not torch.equal(new[0](x), new[2](x))


def test_training_goes_on_from_a_state_dict():
    x = torch.ones(4, 64)
    dropout, fresh = layer(seed=1, stay=2), layer(seed=2, stay=2)
    for _ in range(5):
        dropout(x)

    fresh.load_state_dict(copy.deepcopy(dropout.state_dict()))

    for _ in range(6):
        assert torch.equal(fresh(x), dropout(x))


def test_other_layers_of_dropout_stay():
    class Own(nn.Dropout):
        def forward(self, x):
            return x

    others = [nn.Dropout2d(), nn.AlphaDropout(), Own()]
    new = gyro_dropout(
        nn.Sequential(nn.Dropout(), *others), iters_per_epoch=1, max_epoch=1, generator=generator()
    )

    assert [type(module) for module in new] == [GyroDropoutLayer, *map(type, others)]


def test_what_is_dropped_gets_no_gradient():
    dropout, x = layer(), torch.ones(4, 64).requires_grad_()

    outputs = dropout(x)
    outputs.sum().backward()

    assert torch.equal(x.grad, outputs)  # of ones: 2 where it is kept, 0 elsewhere


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_stay_and_have_the_same_masks(dtype):
    x = torch.ones(4, 8)

    outputs = layer()(x.to(dtype))

    assert outputs.dtype == dtype
    assert torch.equal(outputs.float(), layer()(x))


def test_an_ensemble_shares_its_masks_under_vmap():
    x = torch.rand(3, 4, 8, generator=generator())

    outputs = torch.func.vmap(layer())(x)

    assert torch.equal(outputs, torch.stack([layer()(each) for each in x]))
