"""Laws of the functions, on examples that Hypothesis looks for.

Hypothesis draws a shape and a seed; the values come from the seed, since single values do not
matter here, and it is many times faster.
"""

from functools import partial

import torch
from hypothesis import given
from hypothesis import strategies as st

import composable.functional as F
from tests.support.tensors import FLOATS, named, seeded

seeds = st.integers(0, 2**32 - 1)
batches = st.integers(0, 9)
shares = st.floats(0, 1)


def drawn(seed, *shape):
    return torch.randn(shape, generator=seeded(seed))


@given(seed=seeds, batch=st.integers(0, 200), keep=st.floats(1e-6, 1))
def test_selection_keeps_exactly_its_share_and_nothing_twice(seed, batch, keep):
    chosen = F.select_using_loss(drawn(seed, batch), keep=keep, generator=seeded(seed)).tolist()

    assert len(chosen) == min(batch, max(1, round(keep * batch)))
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(range(batch))


@given(seed=seeds, batch=batches, keep=st.floats(1e-6, 1), shuffle=seeds)
def test_selection_follows_the_examples_when_a_batch_is_shuffled(seed, batch, keep, shuffle):
    losses = torch.randperm(batch, generator=seeded(seed)).float()  # no two are equal
    order = torch.randperm(batch, generator=seeded(shuffle))
    draw = F.draw_selection(batch, keep=keep, generator=seeded(seed))

    shuffled = order[F.apply_selection(losses[order], draw)]

    assert torch.equal(shuffled.sort().values, F.apply_selection(losses, draw))


@given(
    constant=st.builds(named, seeds, st.sampled_from(FLOATS)),
    average=st.builds(partial, st.just(F.ema), smoothing=shares)
    | st.builds(partial, st.just(F.swa), count=st.integers(0, 10**6)),
    steps=st.integers(1, 5),
)
def test_average_of_a_constant_is_the_constant(constant, average, steps):
    """Law of methods: The average of a constant is that constant."""
    new = constant

    for _ in range(steps):
        new = average(new, constant)

    assert all(torch.equal(new[name], constant[name]) for name in constant)
