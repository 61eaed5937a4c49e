"""The laws of selective backprop."""

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

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def losses(batch=8, dtype=torch.float32):
    return torch.randperm(batch, generator=seeded()).to(dtype)


def test_ranks_are_drawn_without_replacement_by_their_weights():
    n, keep, draws = 4, 0.5, 20_000
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


def test_examples_hold_the_ranks_that_were_drawn():
    indices = apply_selection(torch.tensor([5.0, 1.0, 9.0, 3.0]), torch.tensor([0, 3]))

    assert indices.tolist() == [1, 2]


def test_selecting_is_drawing_and_then_applying():
    whole = select_using_loss(losses(), generator=seeded(3))

    assert torch.equal(whole, apply_selection(losses(), draw_selection(8, generator=seeded(3))))


def test_high_losses_are_chosen_more_often():
    generator = seeded()
    chosen = [
        select_using_loss(torch.arange(100.0), keep=0.2, generator=generator) for _ in range(50)
    ]

    assert torch.cat(chosen).float().mean() > 75


@pytest.mark.parametrize("batch", [0, 1, 2, 3, 10, 101])
def test_keeping_everything_changes_nothing(batch):
    assert select_using_loss(losses(batch), keep=1).tolist() == list(range(batch))


@pytest.mark.parametrize("keep", [1e-6, 0.1, 0.25, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("batch", [0, 1, 2, 7, 64])
def test_the_share_is_kept_exactly_and_nothing_twice(keep, batch):
    indices = select_using_loss(losses(batch), keep=keep, generator=seeded()).tolist()

    assert len(indices) == min(batch, max(1, round(keep * batch)))
    assert indices == sorted(set(indices))
    assert all(0 <= index < batch for index in indices)


def test_a_batch_of_one_is_never_emptied():
    assert select_using_loss(torch.ones(1), keep=0.1).tolist() == [0]


def test_a_draw_is_pinned_by_its_seed():
    assert draw_selection(8, generator=seeded(17)).tolist() == [2, 3, 5, 6]


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64])
def test_the_choice_does_not_depend_on_the_dtype(dtype):
    chosen = select_using_loss(losses(dtype=dtype), generator=seeded())

    assert chosen.dtype == torch.int64
    assert torch.equal(chosen, select_using_loss(losses(), generator=seeded()))


def test_of_equal_losses_the_earlier_ranks_lower():
    assert apply_selection(torch.zeros(5), torch.tensor([0, 4])).tolist() == [0, 4]


def test_nan_ranks_above_all_numbers():
    values = torch.tensor([1.0, float("nan"), float("inf")])

    assert apply_selection(values, torch.tensor([2])).tolist() == [1]


@pytest.mark.parametrize("keep", [0.0, -0.5, 1.5, float("nan")])
def test_keep_is_a_share(keep):
    with pytest.raises(ValueError, match=r"keep=.* must be in \(0, 1\]"):
        select_using_loss(losses(), keep=keep)


@pytest.mark.parametrize("shape", [(), (4, 2)])
def test_there_is_one_loss_per_example(shape):
    for call in (select_using_loss, lambda x: apply_selection(x, torch.tensor([0]))):
        with pytest.raises(ValueError, match=r'must have one loss per example.*reduction="none"'):
            call(torch.zeros(shape))


def test_a_batch_has_no_negative_size():
    with pytest.raises(ValueError, match="batch_size=-1 must be at least 0"):
        draw_selection(-1)


# When


def test_selection_starts_at_its_start_and_stops_before_its_end():
    times = [0.0, 0.49, 0.5, 0.89, 0.9, 1.0]

    chosen = [should_select(time, 0, interrupt=0) for time in times]

    assert chosen == [False, False, True, True, False, False]


@pytest.mark.parametrize(
    ("interrupt", "pattern"),
    [(0, "111111"), (1, "000000"), (2, "101010"), (3, "110110")],
)
def test_every_so_many_batches_are_standard_ones(interrupt, pattern):
    chosen = [should_select(0.7, batch, interrupt=interrupt) for batch in range(6)]

    assert "".join(str(int(c)) for c in chosen) == pattern


@pytest.mark.parametrize(("start", "end"), [(-0.1, 0.9), (0.5, 1.1), (0.6, 0.5)])
def test_start_and_end_are_shares_in_order(start, end):
    with pytest.raises(ValueError, match=r"(start|end)=.* must be in \["):
        should_select(0.5, 0, start=start, end=end)


def test_interrupt_is_not_negative():
    with pytest.raises(ValueError, match=r"interrupt=-1 must be at least 0"):
        should_select(0.5, 0, interrupt=-1)
