"""The consistency loss of AugMix, against the formula and known values."""

from math import log

import pytest
import torch
from torch.nn.functional import kl_div
from torch.testing import assert_close

from composable.functional import jensen_shannon_loss
from tests.support.tensors import FLOATS, seeded


def logits(count=3, shape=(4, 5)):
    return list(torch.randn((count, *shape), generator=seeded(), dtype=torch.float64))


@pytest.mark.parametrize("count", [2, 3, 5])
def test_matches_the_mean_divergence_from_the_mean(count):
    predictions = [z.softmax(1) for z in logits(count)]
    mean = sum(predictions) / count

    expected = sum(kl_div(mean.log(), p, reduction="batchmean") for p in predictions) / count

    assert_close(jensen_shannon_loss(*logits(count)), expected)


def test_known_values():
    first, second, third = (100 * row[None] for row in torch.eye(3))

    assert_close(jensen_shannon_loss(first, second, third), torch.tensor(log(3)))
    assert_close(jensen_shannon_loss(first, second), torch.tensor(log(2)))
    assert_close(jensen_shannon_loss(first, first, second).item(), log(3) - 2 / 3 * log(2))
    assert jensen_shannon_loss(first, first + 7, first) == 0


def test_averages_over_the_batch_and_further_dimensions():
    maps = logits(3, (2, 5, 3, 4))
    rows = [z.movedim(1, -1).reshape(-1, 5) for z in maps]

    assert_close(jensen_shannon_loss(*maps), jensen_shannon_loss(*rows))


@pytest.mark.parametrize("dtype", FLOATS)
def test_extreme_logits_are_finite(dtype):
    first, second = torch.tensor([[1e4, -1e4, 0]]), torch.tensor([[-1e4, 1e4, 0]])
    first, second = (z.to(dtype).requires_grad_() for z in (first, second))

    loss = jensen_shannon_loss(first, second)
    loss.backward()

    assert loss.dtype == dtype
    assert_close(loss.item(), log(2), rtol=0, atol=4e-3)
    assert first.grad.isfinite().all()
