"""The laws of ColOut."""

from functools import partial

import pytest
import torch

from composable.functional import ColOutDraw, apply_colout, colout, draw_colout

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int64]
SIZES = [(12,), (8, 10), (3, 6, 7)]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def images(batch=4, size=(8, 10), dtype=torch.float32):
    return (100 * torch.rand(batch, 3, *size, generator=seeded())).to(dtype)


def naive(tensor, draw):
    """Drop the rows and columns one at a time."""
    if draw.rows is not None:
        tensor = torch.stack([tensor[..., row, :] for row in draw.rows.tolist()], -2)
    return torch.stack([tensor[..., column] for column in draw.columns.tolist()], -1)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, "last"])
def test_the_rows_and_columns_that_were_drawn_remain(size, layout):
    last = {2: torch.channels_last, 3: torch.channels_last_3d}.get(len(size))
    layout = last if layout == "last" and last else torch.contiguous_format
    x = images(size=size).to(memory_format=layout)
    draw = draw_colout(size, p_row=0.4, p_col=0.3, generator=seeded())

    small = apply_colout(x, None, draw).inputs

    assert torch.equal(small, naive(x, draw))
    assert small.is_contiguous(memory_format=layout)


def test_the_order_stays_and_none_comes_twice():
    for seed in range(20):
        for index in draw_colout((30, 40), p_row=0.5, p_col=0.1, generator=seeded(seed)):
            assert (index.diff() > 0).all()


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
def test_the_share_that_was_asked_for_is_left_out(p, length, kept):
    draw = draw_colout((length, length), p_row=p, p_col=p, generator=seeded())

    assert len(draw.rows) == len(draw.columns) == kept


def test_every_row_and_column_is_equally_likely_to_remain():
    generator, rows, columns = seeded(), torch.zeros(4), torch.zeros(5)
    for _ in range(2000):
        draw = draw_colout((4, 5), p_row=0.5, p_col=0.4, generator=generator)
        rows[draw.rows] += 1
        columns[draw.columns] += 1

    assert (rows / 2000 - 0.5).abs().max() < 0.05
    assert (columns / 2000 - 0.6).abs().max() < 0.05


def test_leaving_out_nothing_changes_nothing():
    x, maps = images(), images()[:, 0]

    same = colout(x, maps, p_row=0, p_col=0, generator=seeded())

    assert torch.equal(same.inputs, x)
    assert torch.equal(same.targets, maps)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("classes", [False, True])
def test_maps_of_targets_lose_the_same_rows_and_columns(size, classes):
    x = images(size=size)
    maps = x * 2 if classes else x[:, 0].long()

    small = colout(x, maps, p_row=0.5, p_col=0.5, generator=seeded())

    expected = small.inputs * 2 if classes else small.inputs[:, 0].long()
    assert small.inputs.shape[-1] == size[-1] - size[-1] // 2
    assert torch.equal(small.targets, expected)


@pytest.mark.parametrize("shape", [(4,), (4, 10), (4, 8), (4, 10, 8), (4, 3, 4, 5)])
def test_other_targets_stay(shape):
    targets = torch.zeros(shape)

    assert colout(images(), targets, generator=seeded()).targets is targets


def test_probabilities_are_no_places_of_a_signal():
    probabilities = torch.rand(4, 12)

    assert colout(images(size=(12,)), probabilities).targets is probabilities


def test_of_a_signal_and_a_volume_the_other_dimensions_stay():
    assert colout(images(size=(20,)), p_row=0.9).inputs.shape == (4, 3, 17)
    assert colout(images(size=(5, 20, 40))).inputs.shape == (4, 3, 5, 17, 34)


def test_masks_without_channels_are_cut_by_the_same_draw():
    x, draw = images(), draw_colout((8, 10), generator=seeded())

    masks = apply_colout(x[:, 0], x[:, 1].long(), draw)

    whole = apply_colout(x, None, draw).inputs
    assert torch.equal(masks.inputs, whole[:, 0])
    assert torch.equal(masks.targets, whole[:, 1].long())


def test_leaving_out_is_drawing_and_then_applying(still_generators):
    x, options = images(), {"p_row": 0.3, "p_col": 0.4}

    whole = colout(x, **options, generator=seeded(3))
    draw = draw_colout((8, 10), **options, generator=seeded(3))

    assert torch.equal(whole.inputs, apply_colout(x, None, draw).inputs)
    assert whole.targets is None
    assert torch.equal(x, images())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_dtype_and_layout_stay(dtype, layout):
    x = images(dtype=dtype).to(memory_format=layout)

    small = colout(x, generator=seeded()).inputs

    assert small.dtype == dtype
    assert small.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batches_of_batches_are_cut_by_vmap(layout):
    x = torch.stack([images(), images().flip(0)])
    if layout is torch.channels_last:
        x = x.movedim(2, -1).contiguous().movedim(-1, 2)
    draws = [draw_colout((8, 10), generator=seeded(seed)) for seed in range(2)]
    stacked = ColOutDraw(*(torch.stack(part) for part in zip(*draws, strict=True)))

    together = torch.func.vmap(lambda x, draw: apply_colout(x, x[:, 0], draw))(x, stacked)

    for i, draw in enumerate(draws):
        alone = apply_colout(x[i], x[i][:, 0], draw)
        assert torch.equal(together.inputs[i], alone.inputs)
        assert torch.equal(together.targets[i], alone.targets)


@pytest.mark.compile
def test_compiles_into_one_graph_with_its_draw_at_any_size():
    apply = torch.compile(apply_colout, fullgraph=True, backend="aot_eager")
    draw = draw_colout((8, 10), generator=seeded())
    ours, theirs = (f(images(), images()[:, 0], draw) for f in (apply, apply_colout))
    assert torch.equal(ours.inputs, theirs.inputs)
    assert torch.equal(ours.targets, theirs.targets)

    whole = torch.compile(partial(colout, p_row=0.5), fullgraph=True, backend="aot_eager")
    for size in [(8, 10), (12, 20), (14, 40)]:
        small = whole(images(size=size)).inputs
        assert small.shape == (4, 3, size[0] // 2, round(0.85 * size[1]))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"p_row": 1.0}, ValueError, r"p_row=1.0 must be in \[0, 1\)"),
        ({"p_col": -0.1}, ValueError, r"p_col=-0.1 must be in \[0, 1\)"),
        ({"p_col": "a"}, TypeError, "p_col='a' must be a number"),
        ({"generator": 1}, TypeError, "generator must be"),
        ({"inputs": [1]}, TypeError, "inputs must be a tensor, not a list"),
        ({"inputs": torch.zeros(4, 2)}, ValueError, r"inputs must have shape .* not \(4, 2\)"),
        ({"targets": [1]}, TypeError, "targets must be a tensor, not a list"),
        ({"targets": torch.zeros(3)}, ValueError, "must have the same size in dimension 0"),
    ],
)
def test_bad_arguments_are_answered(unchecked, options, error, message):
    with pytest.raises(error, match=message):
        colout(**{"inputs": images(), **options})


def test_the_draw_must_be_one_for_such_inputs(unchecked):
    with pytest.raises(
        TypeError, match="must be a ColOutDraw, not a tuple; draw_colout returns one"
    ):
        apply_colout(images(), None, (1, 2))
    with pytest.raises(ValueError, match=r"draw has rows and columns, but inputs has shape"):
        apply_colout(torch.zeros(4, 10), None, draw_colout((8, 10)))
    with pytest.raises(TypeError, match="size=8 must be the sizes"):
        draw_colout(8)
