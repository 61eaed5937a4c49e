"""Laws of the methods that draw first, and then apply the draw to a batch."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

import composable.functional as F
from composable._support.tree import map_tensors, tensors_of
from composable.utils.reproducibility import preserve_rng
from tests.support.tensors import FLOATS, SIZES, seeded, uniform


@attrs.frozen(eq=False)
class Method:
    """A method on images, its draw, and its deterministic half; its targets are maps."""

    name: str
    whole: Callable[..., Any]
    draw: Callable[..., Any]
    apply: Callable[..., Any]

    def __repr__(self):
        return self.name


def method(name, **options):
    """Find the three functions of a method."""
    whole, draw, apply = (getattr(F, prefix + name) for prefix in ("", "draw_", "apply_"))
    has_targets = "targets" in inspect.signature(whole).parameters

    def given(x):
        return (x, x[:, 0]) if has_targets else (x,)

    def drawn(x, generator=None):
        sizes = {"batch_size": len(x), "size": x.shape[2:]}
        required = {
            k for k, p in inspect.signature(draw).parameters.items() if p.default is p.empty
        }
        taken = {k: v for k, v in sizes.items() if k in required}
        return draw(**taken, **options, generator=generator)

    return Method(
        "-".join([name, *options]),
        lambda x, generator=None: whole(*given(x), **options, generator=generator),
        drawn,
        lambda x, draw: apply(*given(x), draw),
    )


def half(size):
    return F.scaled_size(tuple(size), scale_factor=0.5)


def crop(x, generator=None):
    options = {"scale_factor": 0.5, "mode": "crop", "resize_targets": True}
    return F.resize_batch(x, x[:, 0], **options, generator=generator)


def apply_crop(x, draw):
    return F.ResizedBatch(*(F.apply_crop(t, half(x.shape[2:]), draw) for t in (x, x[:, 0])))


LINEAR = [
    method("mixup"),
    method("mixup", alpha=3.0, per_sample=True),
    method("cutmix"),
    method("cutmix", per_sample=True),
    method("cutmix", uniform_sampling=True, alpha=0.3),
    method("cutout"),
    method("cutout", per_sample=False),
    method("cutout", num_holes=2, length=0.3),
    method("random_translation", max_shift=3),
    method("colout", p_row=0.3, p_col=0.4),
    Method(
        "colout-per_sample",
        lambda x, generator=None: F.colout(x, x[:, 0], per_sample=True, generator=generator),
        lambda x, generator=None: F.draw_colout(
            x.shape[2:], batch_size=len(x), generator=generator
        ),
        lambda x, draw: F.apply_colout(x, x[:, 0], draw),
    ),
    Method(
        "crop",
        crop,
        lambda x, generator=None: F.draw_crop(x.shape[2:], half(x.shape[2:]), generator=generator),
        apply_crop,
    ),
]
AUGMENTING = [
    method("randaugment"),
    method("randaugment", depth=3, severity=4.5, augmentations="safe"),
    method("augmix"),
    method("augmix", depth=2, width=1, severity=7.5, alpha=0.3),
]
METHODS = [*LINEAR, *AUGMENTING]
DTYPES = [*FLOATS, torch.uint8, torch.int64]


def takes(method, dtype):
    if method.name.startswith("mixup"):
        return dtype.is_floating_point
    return method in LINEAR or dtype != torch.int64


def images(method, dtype, size=(8, 10)):
    x = uniform(6, size)
    return (x / 101 if method in AUGMENTING and dtype.is_floating_point else x).to(dtype)


every_method = pytest.mark.parametrize("method", METHODS, ids=repr)
linear_methods = pytest.mark.parametrize("method", LINEAR, ids=repr)


def same(ours, theirs):
    pairs = zip(tensors_of(ours), tensors_of(theirs), strict=True)
    return all(one.dtype == other.dtype and torch.equal(one, other) for one, other in pairs)


def images_of(result):
    return result if isinstance(result, torch.Tensor) else result.inputs


@pytest.mark.parametrize(
    ("method", "dtype"), [(m, d) for m in METHODS for d in DTYPES if takes(m, d)], ids=repr
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_result_matches_its_draw_in_dtype_and_layout(method, dtype, layout, still_generators):
    x = images(method, dtype).to(memory_format=layout)
    before = x.clone()

    result = method.whole(x, generator=seeded(3))

    assert same(result, method.apply(x, method.draw(x, generator=seeded(3))))
    assert same(result, method.whole(x.contiguous(), generator=seeded(3)))
    assert not same(result, method.whole(x, generator=seeded(4)))
    assert images_of(result).dtype == dtype
    assert (images_of(result).stride(1) == 1) == (layout is torch.channels_last)
    assert method.name == "crop" or images_of(result).is_contiguous(memory_format=layout)
    assert torch.equal(x, before)
    if isinstance(result, F.MixedBatch):
        assert result.weight.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@linear_methods
def test_a_graph_traced_with_one_draw_applies_others(method):
    x = images(method, torch.float32)
    one, other = (method.draw(x, generator=seeded(seed)) for seed in (3, 4))
    traced = make_fx(method.apply)(x, one)
    assert same(traced(x, other), method.apply(x, other))


@every_method
@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (1, 3, 4, 4), (2, 3, 0, 4), (2, 3, 4, 0)])
def test_accepts_empty_batches_and_images(method, shape):
    dtype = torch.uint8 if method in AUGMENTING else torch.float32
    result = method.whole(torch.zeros(shape, dtype=dtype), generator=seeded())

    assert images_of(result).shape[:2] == shape[:2]
    assert all(tensor.isfinite().all() for tensor in tensors_of(result))


@every_method
def test_gradients_do_not_change_the_result(method):
    x = images(method, torch.float32).requires_grad_()
    draw = method.draw(x, generator=seeded(2))

    result = images_of(method.apply(x, draw))
    with torch.no_grad():
        without = images_of(method.apply(x, draw))

    assert result.requires_grad
    assert torch.equal(result, without)


@pytest.mark.parametrize("name", ["mixup", "cutmix", "cutout", "random_translation", "colout"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_same_draw_applies_to_images_without_channels(name, size):
    x, one = uniform(4, size), method(name)
    draw = one.draw(x, generator=seeded(4))
    apply = getattr(F, f"apply_{name}")

    whole = images_of(one.apply(x, draw))
    of_inputs = name in ("cutout", "random_translation")
    masks = apply(x[:, 0], draw) if of_inputs else apply(x[:, 0], x[:, 1].long(), draw)

    assert_close(images_of(masks), whole[:, 0])
    assert name != "colout" or torch.equal(masks.targets, whole[:, 1].long())


@linear_methods
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_vmap_over_batches_and_draws_is_a_loop(method, layout):
    x = torch.stack([images(method, torch.float32).roll(by, 0) for by in range(3)])
    if layout is torch.channels_last:
        x = x.movedim(2, -1).contiguous().movedim(-1, 2)
    draws = [method.draw(x[0], generator=seeded(seed)) for seed in range(3)]
    stacks = map(torch.stack, zip(*map(tensors_of, draws), strict=True))
    stacked = map_tensors(lambda _: next(stacks), draws[0])

    together = torch.func.vmap(method.apply)(x, stacked)
    of_one_draw = torch.func.vmap(partial(method.apply, draw=draws[0]))(x)

    for i, draw in enumerate(draws):
        for result, expected in ((together, draw), (of_one_draw, draws[0])):
            loop = method.apply(x[i], expected)
            assert_close([t[i] for t in tensors_of(result)], list(tensors_of(loop)))


@linear_methods
def test_draws_within_vmap_may_differ(method):
    x = images(method, torch.float32, (40, 40)).expand(3, -1, -1, -1, -1)
    with preserve_rng():
        torch.manual_seed(0)
        results = torch.func.vmap(method.whole, randomness="different")(x)

    assert len(images_of(results).unique(dim=0)) == 3


@pytest.mark.compile
@pytest.mark.parametrize("method", [m for m in LINEAR if "-" not in m.name], ids=repr)
def test_compiles_into_one_graph_for_dynamic_sizes(method):
    compiled = torch.compile(method.whole, fullgraph=True, backend="aot_eager")
    for batch, size in [(4, (5, 6)), (3, (7, 9)), (2, (8, 11))]:
        x = uniform(batch, size)

        ours, eager = compiled(x), method.whole(x, generator=seeded())

        assert [t.shape for t in tensors_of(ours)] == [t.shape for t in tensors_of(eager)]


# The draws


def test_draws_are_pinned_by_their_seeds():
    mixup = F.draw_mixup(4, alpha=0.2, generator=seeded(17))
    cutmix = F.draw_cutmix(4, (32, 32), generator=seeded(17))
    operations, strengths = F.draw_randaugment(3, generator=seeded(17))

    assert mixup.permutation.tolist() == cutmix.permutation.tolist() == [3, 1, 0, 2]
    assert mixup.weight.item() == pytest.approx(0.9998076032791571)
    assert cutmix.box.tolist() == [[9, 37], [-11, 17]]
    assert F.draw_selection(8, generator=seeded(17)).tolist() == [2, 3, 5, 6]
    assert operations.tolist() == [[0, 12, 6], [5, 3, 5]]
    expected = [
        [0, 6.969812050717365, 0.04867114615409818],
        [0.17462797098482452, 22, 0.00322596721],
    ]
    assert_close(strengths, torch.tensor(expected).double())


@pytest.mark.parametrize("alpha", [5e-324, 1e-310, 1e-300, 1e-3, 0.2, 1, 50.0, 1e6, 1e300])
def test_weights_are_shares_for_every_alpha(alpha):
    options = {"alpha": alpha, "generator": seeded()}
    weight = F.draw_mixup(1000, per_sample=True, **options).weight
    assert ((weight >= 0.5) & (weight <= 1)).all()  # which NaN is not

    for uniform_sampling in (False, True):
        given = {"per_sample": True, "uniform_sampling": uniform_sampling}
        weight = F.cutmix(uniform(100), torch.arange(100), **given, **options).weight
        assert ((weight >= 0) & (weight <= 1)).all()

    augmix = F.draw_augmix(500, **options)
    assert ((augmix.weight >= 0) & (augmix.weight <= 1)).all()
    assert (augmix.chain_weights >= 0).all()
    assert_close(augmix.chain_weights.sum(0), torch.ones(500).double())
    assert alpha > 1e-100 or set(augmix.chain_weights.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("size", [(7,), (4, 6)])
def test_uniform_sampling_changes_each_pixel_equally_often(size):
    count = 20_000
    x = (torch.arange(count) % 2.0).reshape(-1, 1, *[1] * len(size)).expand(-1, 1, *size)
    swap = torch.arange(count).reshape(-1, 2).flip(1).flatten()

    def pasted(**options):
        box = F.draw_cutmix(count, size, per_sample=True, generator=seeded(), **options).box
        return F.apply_cutmix(x, torch.arange(count), F.CutMixDraw(swap, box)).inputs != x

    def cut(**options):
        return F.cutout(x + 1, length=3, generator=seeded(), **options) == 0

    for change in (pasted, cut):
        often = change(uniform_sampling=True).float().mean(0)
        assert (often - often.mean()).abs().max() < 0.015  # four deviations
        often = change().float().mean(0)
        assert often.max() - often.min() > 0.1


# What changes nothing

BACKWARDS = torch.tensor([5, 4, 3, 2, 1, 0])
NO_BOXES = [[[2, 2], [0, 6]], [[0, 5], [10, 19]], [[-4, 0], [0, 6]]]


def neutral():
    """Yield functions of images that must return their values."""
    for weight in (torch.tensor(1.0), torch.ones(6)):
        yield F.mixup, lambda x, w=weight: F.apply_mixup(x, x, F.MixUpDraw(BACKWARDS, w))
    for box in map(torch.tensor, NO_BOXES):
        yield F.cutmix, lambda x, b=box: F.apply_cutmix(x, x, F.CutMixDraw(BACKWARDS, b))
    yield F.colout, lambda x: F.colout(x, x[:, 0], p_row=0, p_col=0)
    for function in (F.randaugment, F.augmix):
        for chosen in ("all", "safe", "original"):
            yield function, partial(function, severity=0, augmentations=chosen)
    yield F.randaugment, partial(F.randaugment, depth=0)
    draw = F.draw_augmix(6, severity=9, generator=seeded())._replace(weight=torch.zeros(6))
    yield F.augmix, partial(F.apply_augmix, draw=draw)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.uint8])
def test_neutral_arguments_are_the_identity(dtype):
    x = uniform(6, (8, 10), dtype)
    for function, unchanged in neutral():
        if function is F.mixup and dtype == torch.uint8:
            continue
        augments = function in (F.randaugment, F.augmix) and dtype != torch.uint8
        given = x / 101 if augments else x

        result = images_of(unchanged(given))

        assert torch.equal(result, given), unchanged
        assert result.data_ptr() != given.data_ptr(), unchanged
