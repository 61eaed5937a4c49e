"""The laws of mixup, and of the value that mixing gives."""

from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy, mse_loss, one_hot
from torch.testing import assert_close

from composable.functional import (
    MixedBatch,
    MixedTargets,
    MixUpDraw,
    apply_mixup,
    draw_mixup,
    mixup,
)
from composable.testing import NoSync

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def images(batch=4, dtype=torch.float32):
    return torch.randn(batch, 3, 5, 6, generator=seeded()).to(dtype)


def labels(batch=4, classes=5):
    return torch.arange(batch) % classes


def weights(alpha, count=4000):
    return draw_mixup(count, alpha=alpha, per_sample=True, generator=seeded()).weight


def test_inputs_are_blended_as_in_the_paper():
    x, draw = images(), MixUpDraw(torch.tensor([2, 0, 3, 1]), torch.tensor(0.75))

    mixed = apply_mixup(x, labels(), draw)

    expected = torch.stack([0.75 * x[i] + 0.25 * x[j] for i, j in enumerate([2, 0, 3, 1])])
    assert_close(mixed.inputs, expected)
    assert mixed.targets.tolist() == [0, 1, 2, 3]
    assert mixed.partner_targets.tolist() == [2, 0, 3, 1]
    assert mixed.weight == 0.75


def test_each_example_may_have_its_own_weight():
    x, draw = images(2), MixUpDraw(torch.tensor([1, 0]), torch.tensor([0.5, 0.75]))

    mixed = apply_mixup(x, labels(2), draw)

    assert_close(mixed.inputs[0], 0.5 * x[0] + 0.5 * x[1])
    assert_close(mixed.inputs[1], 0.75 * x[1] + 0.25 * x[0])


@pytest.mark.parametrize("weight", [torch.tensor(1.0), torch.ones(4)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_full_weight_changes_nothing(weight, dtype):
    x = images(dtype=dtype) * 1000

    mixed = apply_mixup(x, labels(), MixUpDraw(torch.tensor([1, 2, 3, 0]), weight))

    assert torch.equal(mixed.inputs, x)


def test_mixing_is_drawing_and_then_applying():
    for per_sample in (False, True):
        whole = mixup(images(), labels(), per_sample=per_sample, generator=seeded(3))
        draw = draw_mixup(4, per_sample=per_sample, generator=seeded(3))

        for ours, theirs in zip(whole, apply_mixup(images(), labels(), draw), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 5.0])
def test_the_weight_is_a_folded_beta_variable(alpha):
    beta = torch.distributions.Beta(torch.tensor(alpha).double(), torch.tensor(alpha).double())
    with torch.random.fork_rng():
        torch.manual_seed(1)
        sample = beta.sample((4000,))

    drawn, expected = weights(alpha).sort().values, torch.maximum(sample, 1 - sample).sort()
    assert (drawn - expected.values).abs().max() < 0.03  # quantile by quantile


@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e-3, 0.2, 1, 1e6, 1e300])
def test_every_positive_alpha_gives_weights_from_one_half_to_one(alpha):
    drawn = weights(alpha)

    assert ((drawn >= 0.5) & (drawn <= 1)).all()  # which NaN is not


def test_a_tiny_alpha_mixes_almost_nothing_and_a_huge_one_half_and_half():
    assert (weights(1e-3) > 0.999).float().mean() > 0.95
    assert (weights(1e6) < 0.51).all()


def test_a_draw_is_a_permutation_and_one_weight():
    draw = draw_mixup(7, generator=seeded())

    assert sorted(draw.permutation.tolist()) == list(range(7))
    assert draw.weight.shape == ()
    assert draw_mixup(7, per_sample=True, generator=seeded()).weight.shape == (7,)


def test_a_draw_is_pinned_by_its_seed():
    draw = draw_mixup(4, alpha=0.2, generator=seeded(17))

    assert draw.permutation.tolist() == [3, 1, 0, 2]
    assert draw.weight.item() == pytest.approx(0.9998076032791571)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("per_sample", [False, True])
def test_dtype_and_layout_stay(dtype, per_sample):
    x = images(dtype=dtype).to(memory_format=torch.channels_last)

    mixed = mixup(x, labels(), per_sample=per_sample, generator=seeded())

    assert mixed.inputs.dtype == dtype
    assert mixed.inputs.is_contiguous(memory_format=torch.channels_last)
    assert mixed.weight.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_the_draw_does_not_depend_on_the_dtype():
    short, long = (mixup(images(dtype=d), labels(), generator=seeded()) for d in FLOATS[1:3])

    assert torch.equal(short.partner_targets, long.partner_targets)
    assert torch.equal(short.weight, long.weight)


def test_nothing_waits_for_the_device():
    with NoSync():
        mixed = mixup(images(), labels(), per_sample=True, generator=seeded())
        mixed.soft_targets(5)
        mixed.loss(partial(cross_entropy, reduction="none"), torch.zeros(4, 5))


def test_batches_of_batches_are_mixed_by_vmap():
    x = torch.randn(3, 4, 2, generator=seeded())
    y = torch.arange(12).reshape(3, 4) % 5
    draws = [draw_mixup(4, per_sample=True, generator=seeded(seed)) for seed in range(3)]
    stacked = MixUpDraw(*(torch.stack(part) for part in zip(*draws, strict=True)))

    def soft(x, y, draw):
        mixed = apply_mixup(x, y, draw)
        return mixed, mixed.soft_targets(5)

    together, labels_together = torch.func.vmap(soft)(x, y, stacked)

    for i, draw in enumerate(draws):
        alone, labels_alone = soft(x[i], y[i], draw)
        assert_close(together.inputs[i], alone.inputs)
        assert_close(labels_together[i], labels_alone)


def test_seeds_of_a_vmapped_run_may_differ():
    x = torch.randn(3, 4, 2, generator=seeded())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        mix = torch.func.vmap(lambda x: mixup(x, labels()), randomness="different")
        assert len(set(mix(x).weight.tolist())) == 3


@pytest.mark.compile
def test_compiles_into_one_graph_with_its_draw_and_its_loss():
    @partial(torch.compile, fullgraph=True, backend="aot_eager")
    def loss(x, y):
        mixed = mixup(x, y, alpha=0.4)
        return mixed.loss(cross_entropy, mixed.inputs.flatten(1)), mixed.soft_targets(5)

    value, soft = loss(images(), labels())
    assert value.isfinite()
    assert_close(soft.sum(1), torch.ones(4))


# The value that mixing gives


def pair(weight=0.75):
    return MixedTargets(torch.tensor([0, 1]), torch.tensor([2, 1]), torch.as_tensor(weight))


def test_soft_targets_hold_both_classes_by_weight():
    assert pair().soft(3).tolist() == [[0.75, 0, 0.25], [0, 1, 0]]
    assert pair([0.5, 1.0]).soft(3).tolist() == [[0.5, 0, 0.5], [0, 1, 0]]


def test_soft_targets_of_maps_have_their_classes_in_dimension_one():
    maps = torch.arange(8).reshape(2, 2, 2) % 3

    soft = MixedTargets(maps, maps.flip(0), torch.tensor(0.75)).soft(3)

    both = (one_hot(m, 3).movedim(-1, 1).float() for m in (maps, maps.flip(0)))
    assert_close(soft, torch.lerp(*reversed(list(both)), 0.75))


@pytest.mark.parametrize("dtype", FLOATS)
def test_dense_targets_keep_their_dtype(dtype):
    dense = torch.eye(3, dtype=dtype)

    soft = MixedTargets(dense, dense.flip(0), torch.tensor(0.75)).soft(3)

    assert soft.dtype == dtype
    assert soft[0].tolist() == [0.75, 0, 0.25]


def test_numbers_to_regress_are_blended():
    numbers = MixedTargets(torch.tensor([4.0]), torch.tensor([8.0]), torch.tensor(0.75))

    assert numbers.soft().tolist() == [5.0]


def test_the_loss_is_the_blend_of_the_losses():
    outputs = torch.randn(2, 3, generator=seeded())

    loss = pair(0.75).loss(cross_entropy, outputs)

    first = cross_entropy(outputs, torch.tensor([0, 1]))
    second = cross_entropy(outputs, torch.tensor([2, 1]))
    assert_close(loss, 0.75 * first + 0.25 * second)


def test_the_loss_of_weighted_examples_is_their_mean():
    outputs, weight = torch.randn(2, 3, generator=seeded()), torch.tensor([0.5, 0.75])

    loss = pair(weight).loss(partial(cross_entropy, reduction="none"), outputs)

    first = cross_entropy(outputs, torch.tensor([0, 1]), reduction="none")
    second = cross_entropy(outputs, torch.tensor([2, 1]), reduction="none")
    assert_close(loss, (weight * first + (1 - weight) * second).mean())


def test_the_loss_takes_losses_with_more_dimensions():
    x = torch.randn(2, 3, 4, generator=seeded())
    mixed = MixedTargets(x, x.flip(0), torch.tensor([0.5, 1.0]))

    loss = mixed.loss(partial(mse_loss, reduction="none"), x)

    assert_close(loss, mse_loss(x[0], x[1]) / 4)


def test_a_reduced_loss_is_refused_where_each_example_has_a_weight():
    with pytest.raises(ValueError, match=r"one weight per example .*, not shape \(\)"):
        pair([0.5, 0.75]).loss(cross_entropy, torch.zeros(2, 3))


def test_a_mixed_batch_gives_its_targets():
    mixed = MixedBatch(torch.zeros(2, 1), *pair())

    assert all(a is b for a, b in zip(mixed.mixed_targets, mixed[1:], strict=True))
    assert torch.equal(mixed.soft_targets(3), pair().soft(3))


# What is refused


def test_integers_have_nothing_in_between():
    with pytest.raises(
        TypeError,
        match=r"inputs must have a floating-point dtype, not torch.uint8; .*\.float\(\) / 255",
    ):
        mixup(images().byte(), labels())


@pytest.mark.parametrize(("x", "y"), [((4, 2), (3,)), ((4, 2), ()), ((), (4,))])
def test_inputs_and_targets_are_of_one_batch(x, y):
    with pytest.raises(ValueError, match="must have the same size in dimension 0"):
        mixup(torch.zeros(x), torch.zeros(y))


def test_the_draw_is_of_the_same_batch():
    with pytest.raises(ValueError, match="draw has 3 partners, but inputs has 4 examples"):
        apply_mixup(images(), labels(), draw_mixup(3, generator=seeded()))


def test_soft_targets_of_indices_need_a_class_count():
    with pytest.raises(
        ValueError, match="num_classes=None must be an integer for targets of class indices"
    ):
        pair().soft()


def test_soft_targets_of_probabilities_know_their_class_count():
    dense = torch.eye(3)
    with pytest.raises(ValueError, match="num_classes=4 must match"):
        MixedTargets(dense, dense, torch.tensor(1.0)).soft(4)
