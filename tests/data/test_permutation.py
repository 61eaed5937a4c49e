"""The computed permutation: a permutation for every length, and a random one."""

import math
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composable import Key
from composable.data import GlobalBatchSampler, sampler
from composable.data.permutation import permute
from tests.support.campaign import each_once

COUNT = 300


def chi_square(counts):
    """Return by how many standard deviations counts differ from equal ones."""
    expected = counts.sum() / counts.numel()
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = counts.numel() - 1
    return float((statistic - freedom) / math.sqrt(2 * freedom))


def orders(length):
    return torch.stack([permute(torch.arange(length), length, Key(i)) for i in range(COUNT)])


@given(length=st.integers(1, 5000), seed=st.integers(0, 2**64 - 1))
def test_is_a_permutation(length, seed):
    order = permute(torch.arange(length), length, Key(seed))

    assert torch.equal(order.sort().values, torch.arange(length))


@given(length=st.integers(2**22, 2**40), seed=st.integers(0, 2**64 - 1), data=st.data())
def test_every_part_is_computed_alone(length, seed, data):
    first = data.draw(st.integers(0, length - 64))
    positions = torch.arange(first, first + 64)

    whole = permute(positions, length, Key(seed))

    assert whole.min() >= 0
    assert whole.max() < length
    assert whole.unique().numel() == 64
    assert torch.equal(permute(positions[40:], length, Key(seed)), whole[40:])


@pytest.mark.parametrize(("length", "distance"), each_once([1000, 1024, 9973], [1, 2, 32, 100]))
def test_positions_and_pairs_are_uniform(length, distance):
    drawn = orders(length) * 8 // length  # the eighth of the range
    places = torch.arange(length) * 8 // length
    pairs = drawn[:, :-distance] * 8 + drawn[:, distance:]

    moved = torch.bincount((places * 8 + drawn).flatten(), minlength=64).double()
    assert abs(chi_square(moved)) < 5
    assert chi_square(torch.bincount(pairs.flatten(), minlength=64).double()) < 5


@pytest.mark.parametrize("length", [1000, 9973])
def test_single_positions_and_steps_are_uniform_over_keys(length):
    drawn = orders(length)
    first = torch.bincount(drawn[:, 0] * 10 // length, minlength=10).double()
    steps = (drawn[:, 1:] - drawn[:, :-1]) % length * 20 // length
    fixed = (drawn == torch.arange(length)).sum(1).double()

    assert chi_square(first) < 5
    assert chi_square(torch.bincount(steps.flatten(), minlength=20).double()) < 5
    assert abs(fixed.mean() - 1) < 5 / math.sqrt(COUNT)  # Poisson, with mean and variance 1
    assert abs(fixed.var() - 1) < 0.6


def test_orders_of_different_keys_agree_by_chance_only():
    drawn = orders(1000)
    agreeing = (drawn[1:] == drawn[:-1]).sum(1).double()

    assert abs(agreeing.mean() - 1) < 5 / math.sqrt(COUNT)


@pytest.mark.parametrize("last_batch", ["keep", "drop", "pad"])
def test_sampler_of_a_large_dataset(last_batch, monkeypatch):
    monkeypatch.setattr(sampler, "_LARGEST_STORED", 100)
    monkeypatch.setattr(sampler, "_BLOCK", 32)
    batches = GlobalBatchSampler(1003, batch_size=10, seed=17, last_batch=last_batch)
    expected = permute(torch.arange(1003), 1003, Key(17).fold("order", 0)).tolist()
    expected = {"keep": expected, "drop": expected[:1000], "pad": expected + expected[:7]}

    assert list(chain.from_iterable(batches)) == expected[last_batch]
    assert list(batches.batches_from(37)) == list(batches)[37:]


def test_hundred_million_examples_take_no_memory():
    batches = GlobalBatchSampler(10**8, batch_size=256, seed=17)

    last = list(batches.batches_from(len(batches) - 2))

    assert len({*last[0], *last[1]}) == 512
