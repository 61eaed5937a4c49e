"""Selective backprop; its laws for any batch stand in property_tests/test_purity.py."""

from itertools import permutations

import pytest
import torch
from torch.testing import assert_close

from composable.functional import (
    apply_selection,
    draw_selection,
    select_using_loss,
    should_select,
)
from tests.support.tensors import FLOATS, seeded


def losses(batch=8, dtype=torch.float32):
    return torch.randperm(batch, generator=seeded()).to(dtype)


def test_ranks_match_sampling_without_replacement(unchecked):
    n, keep, draws = 4, 0.5, 10_000
    weights = [((rank + 0.5) / n) ** (1 / keep - 1) for rank in range(n)]
    expected = torch.zeros(n, dtype=torch.float64)  # how often each rank is among the two drawn
    for first, second in permutations(range(n), 2):
        chance = weights[first] / sum(weights)
        chance *= weights[second] / (sum(weights) - weights[first])
        expected[[first, second]] += chance
    generator = seeded()

    drawn = torch.stack([draw_selection(n, keep=keep, generator=generator) for _ in range(draws)])

    share = torch.bincount(drawn.flatten(), minlength=n).double() / draws
    assert_close(share, expected, rtol=0, atol=0.015)


@pytest.mark.parametrize(
    ("values", "ranks", "chosen"),
    [
        ([5.0, 1.0, 9.0, 3.0], [0, 3], [1, 2]),
        ([0.0] * 5, [0, 4], [0, 4]),  # of equal losses the earlier ranks lower
        ([1.0, float("nan"), float("inf")], [2], [1]),  # NaN ranks above all numbers
    ],
)
def test_selects_examples_by_rank(values, ranks, chosen):
    assert apply_selection(torch.tensor(values), torch.tensor(ranks)).tolist() == chosen


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64])
def test_selection_applies_the_draw_in_any_dtype(dtype):
    chosen = select_using_loss(losses(dtype=dtype), generator=seeded())

    assert chosen.dtype == torch.int64
    assert torch.equal(chosen, apply_selection(losses(), draw_selection(8, generator=seeded())))


# When


def test_selection_starts_at_its_start_and_stops_before_its_end():
    times = [0.0, 0.49, 0.5, 0.89, 0.9, 1.0]

    chosen = [should_select(time, 0, interrupt=0) for time in times]

    assert chosen == [False, False, True, True, False, False]


@pytest.mark.parametrize(
    ("interrupt", "pattern"),
    [(0, "111111"), (1, "000000"), (2, "101010"), (3, "110110")],
)
def test_interrupt_skips_every_nth_batch(interrupt, pattern):
    chosen = [should_select(0.7, batch, interrupt=interrupt) for batch in range(6)]

    assert "".join(str(int(c)) for c in chosen) == pattern
