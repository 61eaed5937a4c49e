"""Laws of the functions, on examples that Hypothesis looks for.

Hypothesis draws a shape and a seed; the values come from the seed, since single values do not
matter here, and it is many times faster.
"""

from functools import partial

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import composable.functional as F
from tests.support.tensors import FLOATS, named, seeded

CLASSES = 5

seeds = st.integers(0, 2**32 - 1)
batches = st.integers(0, 9)
shares = st.floats(0, 1)


def drawn(seed, *shape):
    return torch.randn(shape, generator=seeded(seed))


@given(seed=seeds, batch=batches, smoothing=shares)
def test_labels_keep_their_mass(seed, batch, smoothing):
    labels = torch.randint(CLASSES, (batch,), generator=seeded(seed))

    for targets in (labels, drawn(seed, batch, CLASSES).softmax(1)):
        smooth = F.smooth_labels(targets, smoothing=smoothing, num_classes=CLASSES)
        assert (smooth >= 0).all()
        assert_close(smooth.sum(1), torch.ones(batch))


@given(seed=seeds, batch=batches, smoothing=shares)
def test_smoothing_commutes_with_mixing(seed, batch, smoothing):
    soft = drawn(seed, batch, CLASSES).softmax(1)
    mix = partial(F.apply_mixup, soft, draw=F.draw_mixup(batch, generator=seeded(seed)))

    mixed_first = F.smooth_labels(mix(soft).soft_targets(), smoothing=smoothing)

    smooth = F.smooth_labels(soft, smoothing=smoothing)
    assert_close(mix(smooth).soft_targets(), mixed_first)


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


@given(seed=seeds, threshold=st.floats(1e-3, 1e3))
def test_clipping_bounds_the_norm_and_keeps_the_direction(seed, threshold):
    grads = [drawn(seed, 4, 3), drawn(seed + 1, 7)]

    clipped = F.clip_gradients(grads, threshold=threshold)

    before, after = (torch.cat([g.flatten() for g in gs]) for gs in (grads, clipped))
    assert after.norm() <= threshold * (1 + 1e-5)
    assert_close(after, before * (after.norm() / before.norm()))


@given(
    constant=st.builds(named, seeds, st.sampled_from(FLOATS)),
    average=st.builds(partial, st.just(F.ema), smoothing=shares)
    | st.builds(partial, st.just(F.swa), count=st.integers(0, 10**6)),
    steps=st.integers(1, 5),
)
def test_the_average_of_a_constant_is_that_constant(constant, average, steps):
    new = constant

    for _ in range(steps):
        new = average(new, constant)

    assert all(torch.equal(new[name], constant[name]) for name in constant)


@given(seed=seeds, smoothing=shares)
def test_an_average_lies_between(seed, smoothing):
    a, b = drawn(seed, 20), drawn(seed + 1, 20)

    new = F.ema({"w": a}, {"w": b}, smoothing=smoothing)["w"]

    assert (new >= torch.minimum(a, b) - 1e-6).all()
    assert (new <= torch.maximum(a, b) + 1e-6).all()


@given(seed=seeds, stride=st.integers(1, 3), shift=st.integers(-2, 2))
def test_blurring_moves_with_its_input(seed, stride, shift):
    x = drawn(seed, 1, 2, 6 * stride)
    circular = partial(F.blur, stride=stride, padding_mode="circular")

    assert_close(circular(x.roll(shift * stride, -1)), circular(x).roll(shift, -1))
