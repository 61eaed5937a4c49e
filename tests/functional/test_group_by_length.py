"""Batches of similar length."""

import pytest
import torch

import composable.functional as F


def grouped(lengths, batch_size, seed=0, **options):
    lengths = torch.tensor(lengths)
    generator = torch.Generator().manual_seed(seed)
    return F.group_by_length(lengths, batch_size, generator=generator, **options).tolist()


def test_examples_are_sorted_within_a_window_and_its_batches_shuffled():
    lengths = [4, 1, 3, 2, 9, 6, 8, 7, 5]
    orders = [grouped(lengths, 2, seed, window=2) for seed in range(40)]

    assert {tuple(order) for order in orders} == {
        (*first, *second, 8)
        for first in ((1, 3, 0, 2), (0, 2, 1, 3))
        for second in ((5, 7, 4, 6), (4, 6, 5, 7))
    }


def test_an_order_of_fewer_examples_than_a_batch_or_a_window_is_one_window():
    assert grouped([3, 1, 2], 4) == [0, 1, 2]
    assert grouped([], 4) == []
    assert sorted(
        map(tuple, torch.tensor(grouped([4, 1, 3, 2], 2, window=99)).view(2, 2).tolist())
    ) == [
        (0, 2),
        (1, 3),
    ]


def test_equal_lengths_keep_their_batches():
    order = torch.tensor(grouped([5] * 12, 3))

    assert sorted(order.view(4, 3).tolist()) == torch.arange(12).view(4, 3).tolist()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float64])
def test_lengths_may_have_any_dtype(dtype):
    lengths = torch.tensor([4, 1, 3, 2])

    ours, expected = (
        F.group_by_length(one, 2, generator=torch.Generator().manual_seed(0))
        for one in (lengths.to(dtype), lengths)
    )

    assert torch.equal(ours, expected)
