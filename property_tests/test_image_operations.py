"""Laws of RandAugment and AugMix.

Each operation is compared with Pillow in tests/functional/test_image_operations.py.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import composable.functional as F
from tests.support.strategies import few
from tests.support.tensors import noise, seeded

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 9)
batches = st.integers(1, 6)
severities = st.floats(0, 10)
sets = st.sampled_from(["all", "safe", "original"])


@st.composite
def images(draw):
    """Draw a batch of noise, as uint8 or as floats."""
    shape = draw(batches), draw(st.sampled_from([1, 3])), draw(sizes), draw(sizes)
    levels = noise(*shape, seed=draw(seeds))
    return levels / 255 if draw(st.booleans()) else levels


@pytest.mark.parametrize(
    ("draws", "apply"),
    [(F.draw_randaugment, F.apply_randaugment), (F.draw_augmix, F.apply_augmix)],
    ids=["randaugment", "augmix"],
)
@given(x=images(), seed=seeds, severity=severities, augmentations=sets)
@few
def test_a_batch_is_augmented_as_its_images_are_one_by_one(
    draws, apply, x, seed, severity, augmentations
):
    drawn = draws(len(x), severity=severity, augmentations=augmentations, generator=seeded(seed))

    together = apply(x, drawn)

    assert together.min() >= -1e-5
    assert together.max() <= (255 if x.dtype == torch.uint8 else 1 + 1e-5)
    for i in range(len(x)):  # the batch is the last dimension of each part of a draw
        alone = type(drawn)(*(part[..., [i]] for part in drawn))
        assert torch.equal(together[i : i + 1], apply(x[i : i + 1], alone))
