"""ColOut; the laws of its draw stand in test_draws.py, and of any batch in property_tests."""

import pytest
import torch

from composable.functional import colout, draw_colout, random_translation
from tests.support.tensors import seeded, uniform


@pytest.mark.parametrize(
    ("p", "length", "kept"),
    [
        (0.0, 8, 8),
        (0.15, 20, 17),
        (0.15, 8, 7),
        (0.9, 10, 1),
        (0.99, 10, 1),
        (0.5, 1, 1),
        (0.5, 0, 0),
    ],
)
def test_removes_the_requested_fraction(p, length, kept):
    draw = draw_colout((length, length), p_row=p, p_col=p, generator=seeded())

    assert len(draw.rows) == len(draw.columns) == kept


def test_kept_rows_and_columns_are_uniform():
    generator, rows, columns = seeded(), torch.zeros(4), torch.zeros(5)
    for _ in range(2000):
        draw = draw_colout((4, 5), p_row=0.5, p_col=0.4, generator=generator)
        rows[draw.rows] += 1
        columns[draw.columns] += 1

    assert (rows / 2000 - 0.5).abs().max() < 0.05
    assert (columns / 2000 - 0.6).abs().max() < 0.05


def test_each_example_has_its_own_rows_and_columns():
    draw = draw_colout((4, 5), p_row=0.5, p_col=0.4, batch_size=4000, generator=seeded())
    rows, columns = (
        torch.zeros(4000, n).scatter(1, d, 1) for n, d in zip((4, 5), draw, strict=True)
    )

    # The shares of examples in which two rows, columns, or neighbouring examples both keep one.
    assert (rows.mean(0) - 0.5).abs().max() < 0.05
    assert (columns.mean(0) - 0.6).abs().max() < 0.05
    assert (rows.T @ columns / 4000 - 0.3).abs().max() < 0.05
    assert ((rows[1:] * rows[:-1]).mean(0) - 0.25).abs().max() < 0.05


@pytest.mark.parametrize("shape", [(4,), (4, 10), (4, 8), (4, 10, 8), (4, 3, 4, 5)])
def test_other_targets_are_not_modified(shape):
    targets = torch.zeros(shape)

    assert colout(uniform(size=(8, 10)), targets, generator=seeded()).targets is targets


@pytest.mark.parametrize("per_sample", [False, True])
def test_inputs_alone_give_a_tensor(per_sample):
    x, options = uniform(), {"per_sample": per_sample}

    alone = colout(x, **options, generator=seeded())

    assert torch.equal(alone, colout(x, x[:, 0], **options, generator=seeded()).inputs)


def test_probabilities_are_not_cut_like_signals():
    probabilities = torch.rand(4, 12)

    assert colout(uniform(size=(12,)), probabilities).targets is probabilities


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_images_of_one_pixel_are_kept(layout):
    inputs = uniform(size=(1, 1)).contiguous(memory_format=layout)

    assert torch.equal(colout(inputs, per_sample=True), inputs)
    assert torch.equal(random_translation(inputs, max_shift=0), inputs)
