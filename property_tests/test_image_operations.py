"""Laws of the operations on images, and of RandAugment and AugMix."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import composable.functional as F
from tests.support.tensors import noise, seeded

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 9)
batches = st.integers(1, 6)
severities = st.floats(0, 10)
sets = st.sampled_from(["all", "safe", "original"])

FEW = settings(max_examples=15)


@st.composite
def images(draw, channels=(1, 3), floats=None):
    """Draw a batch of noise, as uint8 or as floats."""
    shape = draw(batches), draw(st.sampled_from(channels)), draw(sizes), draw(sizes)
    levels = noise(*shape, seed=draw(seeds))
    return levels / 255 if (draw(st.booleans()) if floats is None else floats) else levels


def levels(images):
    return images.double() if images.dtype == torch.uint8 else 255 * images.double()


METHODS = pytest.mark.parametrize(
    ("draws", "apply"),
    [(F.draw_randaugment, F.apply_randaugment), (F.draw_augmix, F.apply_augmix)],
    ids=["randaugment", "augmix"],
)


@METHODS
@given(x=images(), seed=seeds, severity=severities, augmentations=sets)
@FEW
def test_a_batch_is_augmented_as_its_images_are_one_by_one(
    draws, apply, x, seed, severity, augmentations
):
    drawn = draws(len(x), severity=severity, augmentations=augmentations, generator=seeded(seed))

    together = apply(x, drawn)

    assert ((levels(together) >= -1e-3) & (levels(together) <= 255.001)).all()
    for i in range(len(x)):  # the batch is the last dimension of each part of a draw
        alone = type(drawn)(*(part[..., [i]] for part in drawn))
        assert torch.equal(together[i : i + 1], apply(x[i : i + 1], alone))


@given(x=images(floats=False), seed=seeds, augmentations=sets)
@FEW
def test_one_operation_on_floats_is_that_on_levels_within_one(x, seed, augmentations):
    draw = F.draw_randaugment(len(x), depth=1, augmentations=augmentations, generator=seeded(seed))

    ours, exact = F.apply_randaugment(x, draw), F.apply_randaugment(x / 255, draw)

    assert (levels(ours) - levels(exact)).abs().max() <= 1.01


@given(seed=seeds, low=severities, high=severities)
def test_operations_grow_with_the_severity(seed, low, high):
    low, high = sorted([low, high])
    if low == 0:
        return
    mild, strong = (
        F.draw_randaugment(40, severity=severity, generator=seeded(seed))
        for severity in (low, high)
    )
    neutral = torch.tensor([0, 0, 4, 0, 256, 0, 0, 0, 0, 1, 1, 1, 1])[mild.operations]

    assert torch.equal(mild.operations, strong.operations)
    # Three quarters are taken of a brightness above 1, so it alone may fall.
    others = (mild.operations != 11) | (strong.strengths < 1)
    grown = (strong.strengths - neutral).abs() >= (mild.strengths - neutral).abs() - 1e-9
    assert (grown | ~others).all()


@given(x=images(), factor=st.floats(0, 9))
@FEW
def test_contrast_and_brightness_keep_the_order_of_values(x, factor):
    order = levels(x).flatten(1).sort(1).indices

    for operation in (F.images.contrast, F.images.brightness):
        moved = levels(operation(x, factor)).flatten(1)
        assert (moved.gather(1, order).diff(dim=1) >= -1e-3).all()


@given(x=images())
@FEW
def test_autocontrast_twice_is_autocontrast_once(x):
    once = F.images.autocontrast(x)

    assert (levels(F.images.autocontrast(once)) - levels(once)).abs().max() <= 1


@given(x=images(), bits=st.integers(1, 8), other=st.integers(1, 8))
@FEW
def test_posterizing_twice_keeps_the_fewer_bits(x, bits, other):
    twice = F.images.posterize(F.images.posterize(x, bits), other)

    assert torch.equal(twice, F.images.posterize(x, min(bits, other)))


@given(x=images(), threshold=st.integers(0, 256))
@FEW
def test_solarize_inverts_what_reaches_the_threshold(x, threshold):
    old, new = levels(x), levels(F.images.solarize(x, threshold))

    expected = torch.where(old.round() >= threshold, 255 - old, old)
    assert_close(new, expected, rtol=0, atol=1e-4)


@given(x=images(), pixels=st.integers(-12, 12))
@FEW
def test_a_translation_is_a_copy_with_black(x, pixels):
    moved, expected = F.images.translate_x(x, pixels), torch.zeros_like(x)
    width = x.shape[3]
    for column in range(width):
        if 0 <= column + pixels < width:
            expected[..., column] = x[..., column + pixels]

    assert torch.equal(moved, expected)
    assert torch.equal(F.images.translate_y(x.mT, pixels), expected.mT)


@given(x=images(), factor=st.floats(-2, 2))
@FEW
def test_shears_are_one_another_on_the_transposed_image(x, factor):
    assert torch.equal(F.images.shear_y(x.mT, factor), F.images.shear_x(x, factor).mT)


@given(x=images(), turns=st.integers(-4, 4))
@FEW
def test_a_square_turns_by_right_angles(x, turns):
    side = min(x.shape[2:])
    square = x[..., :side, :side]

    turned = F.images.rotate(square, 90 * turns)

    assert_close(levels(turned), levels(torch.rot90(square, turns, (2, 3))), rtol=0, atol=0.01)


@given(x=images(channels=(3,)), factor=st.floats(0, 9))
@FEW
def test_grey_images_have_no_colour_to_change(x, factor):
    grey = x[:, :1].expand(-1, 3, -1, -1)

    assert (levels(F.images.color(grey, factor)) - levels(grey)).abs().max() <= 1e-3
