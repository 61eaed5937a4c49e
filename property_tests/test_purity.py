"""Laws of the functions, on examples that Hypothesis looks for.

Hypothesis draws a shape and a seed; the values come from the seed, since single values do not
matter here, and it is many times faster.
"""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import composable.functional as F

CLASSES = 5

seeds = st.integers(0, 2**32 - 1)
batches = st.integers(0, 9)
shares = st.floats(0, 1)
alphas = st.floats(1e-3, 1e3)

pytestmark = pytest.mark.filterwarnings("ignore::composable.functional.NoEffectWarning")


class Case:
    """The arguments that a seed stands for."""

    def __init__(self, seed, batch):
        generator = self.generator = torch.Generator().manual_seed(seed)
        self.images = torch.randn(batch, 3, 4, 4, generator=generator)
        self.labels = torch.randint(CLASSES, (batch,), generator=generator)
        self.outputs = torch.randn(batch, CLASSES, generator=generator)
        self.soft = torch.rand(batch, CLASSES, generator=generator).softmax(1)
        self.losses = torch.rand(batch, generator=generator)
        self.grads = {"w": torch.randn(batch, 3, generator=generator), "none": None}
        self.params = {"w": torch.randn(batch, 3, generator=generator), "none": None}
        self.model = nn.Sequential(nn.Conv2d(3, 2, 3, stride=2), nn.MaxPool2d(2))
        self.clip = partial(F.clip_gradients, self.grads, threshold=0.1, params=self.params)


@given(seed=seeds, batch=st.integers(1, 9), alpha=alphas, per_sample=st.booleans())
@settings(deadline=None)
def test_the_mixed_loss_is_the_loss_of_the_soft_targets(seed, batch, alpha, per_sample):
    c = Case(seed, batch)
    mixed = F.mixup(c.images, c.labels, alpha=alpha, per_sample=per_sample, generator=c.generator)
    loss_fn = partial(cross_entropy, reduction="none" if per_sample else "mean")

    soft = cross_entropy(c.outputs, mixed.soft_targets(CLASSES))

    assert_close(mixed.loss(loss_fn, c.outputs), soft)


@given(seed=seeds, batch=batches, alpha=alphas, smoothing=shares)
@settings(deadline=None)
def test_labels_keep_their_mass(seed, batch, alpha, smoothing):
    c = Case(seed, batch)

    mixed = F.mixup(c.images, c.labels, alpha=alpha, generator=c.generator)
    for soft in (
        mixed.soft_targets(CLASSES),
        F.smooth_labels(c.labels, smoothing=smoothing, num_classes=CLASSES),
        F.smooth_labels(c.soft, smoothing=smoothing),
    ):
        assert (soft >= 0).all()
        assert_close(soft.sum(1), torch.ones(batch))


@given(seed=seeds, batch=batches, smoothing=shares)
@settings(deadline=None)
def test_smoothing_commutes_with_mixing(seed, batch, smoothing):
    c = Case(seed, batch)
    draw = F.draw_mixup(batch, generator=c.generator)

    mixed_first = F.smooth_labels(
        F.apply_mixup(c.images, c.soft, draw).soft_targets(), smoothing=smoothing
    )
    smooth = F.smooth_labels(c.soft, smoothing=smoothing)

    assert_close(F.apply_mixup(c.images, smooth, draw).soft_targets(), mixed_first)


@given(seed=seeds, batch=st.integers(0, 200), keep=st.floats(1e-6, 1))
@settings(deadline=None)
def test_selection_keeps_exactly_its_share_and_nothing_twice(seed, batch, keep):
    c = Case(seed, batch)

    chosen = F.select_using_loss(c.losses, keep=keep, generator=c.generator).tolist()

    assert len(chosen) == min(batch, max(1, round(keep * batch)))
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(range(batch))


@given(seed=seeds, batch=batches, keep=st.floats(1e-6, 1), shuffle=seeds)
@settings(deadline=None)
def test_selection_follows_the_examples_when_a_batch_is_shuffled(seed, batch, keep, shuffle):
    c = Case(seed, batch)
    losses = torch.randperm(batch, generator=c.generator).float()  # no two are equal
    order = torch.randperm(batch, generator=torch.Generator().manual_seed(shuffle))
    draw = F.draw_selection(batch, keep=keep, generator=c.generator)

    shuffled = order[F.apply_selection(losses[order], draw)]

    assert torch.equal(shuffled.sort().values, F.apply_selection(losses, draw))


@given(seed=seeds, threshold=st.floats(1e-3, 1e3))
@settings(deadline=None)
def test_clipping_bounds_the_norm_and_keeps_the_direction(seed, threshold):
    generator = torch.Generator().manual_seed(seed)
    grads = [torch.randn(4, 3, generator=generator), torch.randn(7, generator=generator)]

    clipped = F.clip_gradients(grads, threshold=threshold)

    before, after = (torch.cat([g.flatten() for g in gs]) for gs in (grads, clipped))
    assert after.norm() <= threshold * (1 + 1e-5)
    assert_close(after, before * (after.norm() / before.norm()))


@given(seed=seeds, smoothing=shares, steps=st.integers(1, 5))
@settings(deadline=None)
def test_the_average_of_a_constant_is_that_constant(seed, smoothing, steps):
    constant = {"w": torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))}
    average = constant

    for _ in range(steps):
        average = F.ema(average, constant, smoothing=smoothing)

    assert torch.equal(average["w"], constant["w"])


@given(seed=seeds, smoothing=shares)
@settings(deadline=None)
def test_an_average_lies_between(seed, smoothing):
    generator = torch.Generator().manual_seed(seed)
    a, b = ({"w": torch.randn(20, generator=generator)} for _ in range(2))

    new = F.ema(a, b, smoothing=smoothing)["w"]

    assert (new >= torch.minimum(a["w"], b["w"]) - 1e-6).all()
    assert (new <= torch.maximum(a["w"], b["w"]) + 1e-6).all()


@given(seed=seeds, stride=st.integers(1, 3), shift=st.integers(-2, 2))
@settings(deadline=None)
def test_blurring_moves_with_its_input(seed, stride, shift):
    x = torch.randn(1, 2, 6 * stride, generator=torch.Generator().manual_seed(seed))
    circular = partial(F.blur, stride=stride, padding_mode="circular")

    assert_close(circular(x.roll(shift * stride, -1)), circular(x).roll(shift, -1))
