"""Filters of batches."""

import pytest
import torch

from composable.functional import apply_selection, select_highest, select_using_loss


@pytest.mark.parametrize(
    ("keep", "expected"), [(0.2, [4]), (0.5, [1, 4]), (0.6, [1, 3, 4]), (1.0, [0, 1, 2, 3, 4])]
)
def test_highest_losses_are_kept_in_the_order_of_the_batch(keep, expected):
    losses = torch.tensor([0.3, 2.0, -1.0, 0.5, 7.0])

    assert select_highest(losses, keep=keep).tolist() == expected


def test_one_example_is_kept_at_least_and_none_of_an_empty_batch():
    assert select_highest(torch.tensor([3.0]), keep=0.01).tolist() == [0]
    assert select_highest(torch.empty(0)).tolist() == []


def test_nan_ranks_above_all_and_later_examples_above_equal_ones():
    assert select_highest(torch.tensor([torch.nan, 9.0, torch.inf])).tolist() == [0, 2]
    assert select_highest(torch.ones(4)).tolist() == [2, 3]


def test_it_keeps_as_many_as_the_draw_by_ranks():
    losses = torch.rand(7)

    for keep in (0.1, 0.5, 0.79, 1.0):
        assert len(select_highest(losses, keep=keep)) == len(select_using_loss(losses, keep=keep))
    assert torch.equal(
        select_highest(losses, keep=0.4), apply_selection(losses, torch.tensor([4, 5, 6]))
    )


def test_more_than_one_loss_an_example_is_refused():
    with pytest.raises(ValueError, match=r"one loss per example, of shape \[batch\], not \(2, 3\)"):
        select_highest(torch.ones(2, 3))
