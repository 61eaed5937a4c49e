"""The laws of CutMix."""

import sys
from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from composable.functional import CutMixDraw, apply_cutmix, cutmix, draw_cutmix

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8]
SIZES = [(7,), (5, 6), (3, 4, 5)]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def images(batch=4, size=(5, 6), dtype=torch.float32):
    return (100 * torch.rand(batch, 3, *size, generator=seeded())).to(dtype)


def labels(batch=4):
    return torch.arange(batch)


def naive(x, draw):
    """Mix pixel by pixel, and return the share of pixels that each example keeps, too."""
    mixed, size = x.clone(), x.shape[2:]
    kept = torch.zeros(len(x), dtype=torch.float64)
    for i, partner in enumerate(draw.permutation.tolist()):
        box = draw.box[i] if draw.box.ndim == 3 else draw.box
        for place in torch.cartesian_prod(*map(torch.arange, size)).reshape(-1, len(size)):
            if all(start <= at < stop for at, (start, stop) in zip(place, box, strict=True)):
                mixed[(i, slice(None), *place)] = x[(partner, slice(None), *place)]
            else:
                kept[i] += 1
    return mixed, kept / size.numel()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("uniform_sampling", [False, True])
def test_the_box_of_the_partner_is_pasted_and_the_rest_stays(size, per_sample, uniform_sampling):
    x = images(size=size)
    for seed in range(5):
        draw = draw_cutmix(
            *(4, size),
            per_sample=per_sample,
            uniform_sampling=uniform_sampling,
            generator=seeded(seed),
        )

        mixed = apply_cutmix(x, labels(), draw)

        expected, kept = naive(x, draw)
        assert torch.equal(mixed.inputs, expected)
        assert_close(mixed.weight.expand(4), kept.float())
        assert torch.equal(mixed.targets, labels())
        assert torch.equal(mixed.partner_targets, draw.permutation)


def test_the_weight_is_what_remains_after_clipping():
    draw = CutMixDraw(torch.tensor([1, 0]), torch.tensor([[-1, 2], [4, 9]]))

    mixed = apply_cutmix(images(2), labels(2), draw)

    assert_close(mixed.weight, torch.tensor(1 - 2 * 2 / 30))
    assert torch.equal(mixed.inputs[0, :, :2, 4:], images(2)[1, :, :2, 4:])
    assert torch.equal(mixed.inputs[0, :, 2:], images(2)[0, :, 2:])


def test_a_box_takes_up_what_its_share_says():
    """Before it is clipped: sides of size * sqrt(1 - share), to the nearest pixel."""
    size = (1000, 500)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        share = torch.distributions.Beta(torch.tensor(1.0), torch.tensor(1.0)).sample((4000,))
    box = draw_cutmix(4000, size, per_sample=True, generator=seeded()).box
    height, width = (box[..., 1] - box[..., 0]).unbind(1)

    assert ((height - 2 * width).abs() <= 1).all()  # the shape of the image
    area = (height * width / 500_000).sort().values
    assert (area - (1 - share).sort().values).abs().max() < 0.03  # quantile by quantile


def test_a_known_share_gives_a_known_side(monkeypatch):
    share = torch.tensor(0.75, dtype=torch.float64)
    module = sys.modules["composable.functional.cutmix"]  # the package has a function of its name
    monkeypatch.setattr(module, "draw_beta", lambda *_, **__: share)
    for size, sides in [((8,), [2]), ((8, 5), [4, 2]), ((8, 8, 16), [5, 5, 10])]:
        box = draw_cutmix(1, size, generator=seeded()).box

        assert (box[:, 1] - box[:, 0]).tolist() == sides  # 8 * 0.25 ** (1 / dims)


@pytest.mark.parametrize("size", [(7,), (4, 6)])
def test_with_uniform_sampling_every_pixel_is_replaced_equally_often(size):
    x = torch.zeros(20_000, 1, *size)
    x[1::2] = 1
    swap = torch.arange(20_000).reshape(-1, 2).flip(1).flatten()
    draw = draw_cutmix(
        20_000, size, alpha=1.0, uniform_sampling=True, per_sample=True, generator=seeded()
    )

    replaced = (apply_cutmix(x, labels(20_000), CutMixDraw(swap, draw.box)).inputs != x).float()

    often = replaced.mean(0)
    assert (often - often.mean()).abs().max() < 0.015  # four deviations
    middle = draw_cutmix(20_000, size, per_sample=True, generator=seeded())
    unequal = apply_cutmix(x, labels(20_000), CutMixDraw(swap, middle.box)).inputs != x
    assert unequal.float().mean(0).max() - unequal.float().mean(0).min() > 0.1


@pytest.mark.parametrize("box", [[[2, 2], [0, 6]], [[0, 5], [6, 9]], [[-4, 0], [0, 6]]])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_box_without_pixels_changes_nothing(box, dtype):
    draw = CutMixDraw(torch.tensor([1, 2, 3, 0]), torch.tensor(box))

    mixed = apply_cutmix(images(dtype=dtype), labels(), draw)

    assert torch.equal(mixed.inputs, images(dtype=dtype))
    assert mixed.weight == 1


def test_a_box_of_everything_is_the_partner():
    draw = CutMixDraw(torch.tensor([1, 2, 3, 0]), torch.tensor([[-9, 9], [0, 6]]))

    mixed = apply_cutmix(images(), labels(), draw)

    assert torch.equal(mixed.inputs, images()[[1, 2, 3, 0]])
    assert mixed.weight == 0


@pytest.mark.parametrize("alpha", [5e-324, 1e-3, 1, 1e6, 1e300])
@pytest.mark.parametrize("uniform_sampling", [False, True])
def test_every_positive_alpha_gives_a_share(alpha, uniform_sampling):
    options = {"alpha": alpha, "uniform_sampling": uniform_sampling, "per_sample": True}
    weight = cutmix(images(100), labels(100), **options, generator=seeded()).weight

    assert ((weight >= 0) & (weight <= 1)).all()  # which NaN is not


def test_mixing_is_drawing_and_then_applying():
    for options in ({}, {"per_sample": True}, {"uniform_sampling": True, "alpha": 0.3}):
        whole = cutmix(images(), labels(), **options, generator=seeded(3))
        draw = draw_cutmix(4, (5, 6), **options, generator=seeded(3))

        for ours, theirs in zip(whole, apply_cutmix(images(), labels(), draw), strict=True):
            assert torch.equal(ours, theirs)


def test_a_draw_is_pinned_by_its_seed():
    draw = draw_cutmix(4, (32, 32), generator=seeded(17))

    assert draw.permutation.tolist() == [3, 1, 0, 2]
    assert draw.box.tolist() == [[9, 37], [-11, 17]]


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("classes", [(), (3,)], ids=["indices", "probabilities"])
@pytest.mark.parametrize("size", [(5, 6), (3, 4, 5)])
def test_maps_of_targets_are_pasted_like_the_images(per_sample, classes, size):
    x = images(size=size)
    maps = x[:, 0].long() if not classes else x / 7

    mixed = cutmix(x, maps, per_sample=per_sample, generator=seeded(2))

    at = mixed.inputs[:, 0].long() if not classes else mixed.inputs / 7
    assert torch.equal(mixed.targets, at)
    assert torch.equal(mixed.partner_targets, at)
    assert 0 < mixed.weight.mean() < 1


def test_the_loss_of_pasted_maps_is_that_of_each_pixel():
    x = images()
    maps = (x[:, 0] % 3).long()
    maps[0, 0, 0] = -100  # to be ignored, as ever
    outputs = torch.randn(4, 3, 5, 6, generator=seeded())

    mixed = cutmix(x, maps, generator=seeded(2))

    assert_close(mixed.loss(cross_entropy, outputs), cross_entropy(outputs, mixed.targets))


def test_a_class_for_each_place_of_a_signal_is_pasted_and_probabilities_are_not():
    x, draw = images(size=(7,)), draw_cutmix(4, (7,), generator=seeded(2))

    places = apply_cutmix(x, x[:, 0].long(), draw)
    probabilities = apply_cutmix(x, x[:, 0].softmax(1), draw)

    assert torch.equal(places.targets, places.inputs[:, 0].long())
    assert torch.equal(probabilities.targets, x[:, 0].softmax(1))
    assert torch.equal(probabilities.partner_targets, x[:, 0].softmax(1)[draw.permutation])


def test_masks_without_channels_are_mixed_by_the_same_draw():
    x, draw = images(), draw_cutmix(4, (5, 6), per_sample=True, generator=seeded(4))

    masks = apply_cutmix(x[:, 0], labels(), draw)

    assert torch.equal(masks.inputs, apply_cutmix(x, labels(), draw).inputs[:, 0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("per_sample", [False, True])
def test_dtype_and_layout_stay(dtype, per_sample):
    x = images(dtype=dtype).to(memory_format=torch.channels_last)

    mixed = cutmix(x, labels(), per_sample=per_sample, generator=seeded())

    assert mixed.inputs.dtype == dtype
    assert mixed.inputs.is_contiguous(memory_format=torch.channels_last)
    assert mixed.weight.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_images_without_pixels_are_mixed():
    mixed = cutmix(torch.zeros(2, 3, 0, 4), labels(2), generator=seeded())

    assert mixed.inputs.shape == (2, 3, 0, 4)
    assert mixed.weight.isfinite()


def test_derivatives_in_forward_mode_are_those_of_the_pasted_pixels():
    x, direction = images(), images() + 1
    draw = draw_cutmix(4, (5, 6), generator=seeded(2))

    def mix(x):
        return apply_cutmix(x, labels(), draw).inputs

    value, derivative = torch.func.jvp(mix, (x,), (direction,))

    assert torch.equal(value, mix(x))
    assert torch.equal(derivative, mix(direction))


def test_the_result_is_the_same_with_and_without_a_gradient():
    draw = draw_cutmix(4, (5, 6), generator=seeded(2))
    x = images().requires_grad_()

    mixed = apply_cutmix(x, labels(), draw).inputs
    with torch.no_grad():
        without = apply_cutmix(x, labels(), draw).inputs

    assert mixed.requires_grad
    assert not without.requires_grad
    assert torch.equal(mixed, without)


@pytest.mark.parametrize("per_sample", [False, True])
def test_batches_of_batches_are_mixed_by_vmap(per_sample):
    x = torch.randn(3, 4, 2, 5, 6, generator=seeded())
    y = torch.arange(12).reshape(3, 4) % 5
    options = {"per_sample": per_sample}
    draws = [draw_cutmix(4, (5, 6), **options, generator=seeded(seed)) for seed in range(3)]
    stacked = CutMixDraw(*(torch.stack(part) for part in zip(*draws, strict=True)))

    together = torch.func.vmap(apply_cutmix)(x, y, stacked)
    one_draw = torch.func.vmap(apply_cutmix, in_dims=(0, 0, None))(x, y, draws[0])

    for i, draw in enumerate(draws):
        for part, alone in zip(together, apply_cutmix(x[i], y[i], draw), strict=True):
            assert_close(part[i], alone)
        assert_close(one_draw.inputs[i], apply_cutmix(x[i], y[i], draws[0]).inputs)


def test_seeds_of_a_vmapped_run_may_differ():
    x = torch.randn(3, 4, 2, 9, 9, generator=seeded())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        mix = torch.func.vmap(lambda x: cutmix(x, labels()), randomness="different")
        assert len(set(mix(x).weight.tolist())) == 3


@pytest.mark.compile
def test_compiles_into_one_graph_with_its_draw_and_its_loss_at_any_size():
    @partial(torch.compile, fullgraph=True, backend="aot_eager")
    def loss(x, y):
        mixed = cutmix(x, y, alpha=0.4)
        return mixed.loss(cross_entropy, mixed.inputs.mean((2, 3))), mixed.soft_targets(5)

    for batch, size in [(4, (5, 6)), (3, (7, 9)), (2, (8, 11))]:
        value, soft = loss(images(batch, size), labels(batch) % 3)
        assert value.isfinite()
        assert_close(soft.sum(1), torch.ones(batch))


# What is refused


def test_inputs_have_spatial_dimensions(unchecked):
    with pytest.raises(ValueError, match=r"inputs must have shape \[batch, channels, .*\(4, 2\)"):
        cutmix(torch.zeros(4, 2), labels())


def test_inputs_and_targets_are_tensors(unchecked):
    with pytest.raises(TypeError, match=r"inputs must be a tensor, not a tuple.*apply_cutmix"):
        cutmix((images(),), labels())
    with pytest.raises(TypeError, match=r"targets must be a tensor, not a list"):
        cutmix(images(), [1, 2, 3, 4])


@pytest.mark.parametrize("targets", [torch.zeros(3), torch.zeros(())])
def test_inputs_and_targets_are_of_one_batch(targets):
    with pytest.raises(ValueError, match="must have the same size in dimension 0"):
        cutmix(images(), targets)


def test_the_draw_is_of_the_same_batch_and_dimensions(unchecked):
    with pytest.raises(ValueError, match="draw has 3 partners, but inputs has 4 examples"):
        apply_cutmix(images(), labels(), draw_cutmix(3, (5, 6), generator=seeded()))
    with pytest.raises(ValueError, match=r"draw has a box of 2 dimensions, but inputs has shape"):
        apply_cutmix(labels()[:, None], labels(), draw_cutmix(4, (5, 6), generator=seeded()))
    with pytest.raises(
        TypeError, match="must be a CutMixDraw, not a tuple; draw_cutmix returns one"
    ):
        apply_cutmix(images(), labels(), (torch.arange(4), torch.zeros(2, 2)))
