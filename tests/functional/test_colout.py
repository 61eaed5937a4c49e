"""ColOut and random translation; test_draws.py has the laws of their draws, of batches others."""

import pytest
import torch
from torch.nn.functional import pad

import composable.functional as F
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
    draw = F.draw_colout((length, length), p_row=p, p_col=p, generator=seeded())

    assert len(draw.rows) == len(draw.columns) == kept


def test_kept_rows_and_columns_are_uniform():
    generator, rows, columns = seeded(), torch.zeros(4), torch.zeros(5)
    for _ in range(2000):
        draw = F.draw_colout((4, 5), p_row=0.5, p_col=0.4, generator=generator)
        rows[draw.rows] += 1
        columns[draw.columns] += 1

    assert (rows / 2000 - 0.5).abs().max() < 0.05
    assert (columns / 2000 - 0.6).abs().max() < 0.05


def test_each_example_has_its_own_rows_and_columns():
    draw = F.draw_colout((4, 5), p_row=0.5, p_col=0.4, batch_size=4000, generator=seeded())
    rows, columns = (
        torch.zeros(4000, n).scatter(1, d, 1) for n, d in zip((4, 5), draw, strict=True)
    )

    # The shares of examples in which two rows, columns, or neighbouring examples both keep one.
    assert (rows.mean(0) - 0.5).abs().max() < 0.05
    assert (columns.mean(0) - 0.6).abs().max() < 0.05
    assert (rows.T @ columns / 4000 - 0.3).abs().max() < 0.05
    assert ((rows[1:] * rows[:-1]).mean(0) - 0.25).abs().max() < 0.05


@pytest.mark.parametrize(
    ("size", "shape"),
    [
        *(((8, 10), shape) for shape in [(4,), (4, 10), (4, 8), (4, 10, 8), (4, 3, 4, 5)]),
        ((12,), (4, 12)),  # probabilities of signals
    ],
)
def test_other_targets_are_not_modified(size, shape):
    targets = torch.zeros(shape)

    assert F.colout(uniform(size=size), targets, generator=seeded()).targets is targets


@pytest.mark.parametrize("per_sample", [False, True])
def test_inputs_alone_give_a_tensor(per_sample):
    x, options = uniform(), {"per_sample": per_sample}

    alone = F.colout(x, **options, generator=seeded())

    assert torch.equal(alone, F.colout(x, x[:, 0], **options, generator=seeded()).inputs)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_images_of_one_pixel_are_kept(layout):
    inputs = uniform(size=(1, 1)).contiguous(memory_format=layout)

    assert torch.equal(F.colout(inputs, per_sample=True), inputs)
    assert torch.equal(F.random_translation(inputs, max_shift=0), inputs)


# --- random translation ---


def test_each_image_is_a_crop_of_its_reflection():
    images, shifts = torch.randn(40, 3, 6, 9), F.draw_random_translation(40, (6, 9), max_shift=3)
    padded = pad(images, [3] * 4, mode="reflect")

    for image, (down, right), moved in zip(
        padded, 3 + shifts, F.apply_random_translation(images, shifts), strict=True
    ):
        assert torch.equal(image[:, down : down + 6, right : right + 9], moved)


def test_all_shifts_are_equally_likely():
    draw = F.draw_random_translation(9000, (5, 5), max_shift=1, generator=seeded())
    counts = torch.unique(draw, dim=0, return_counts=True)[1]

    assert len(counts) == 9
    assert counts.float().std() < 50
