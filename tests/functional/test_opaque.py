"""RandAugment and AugMix within `torch.compile` and `torch.func`: the same images and gradients."""

from functools import partial

import pytest
import torch
from torch.func import grad, vmap

import composable.functional as F
from composable.functional import _compiled
from composable.functional._operations import apply_by_mask, apply_operations
from tests.support.campaign import each_once

METHODS = {
    "randaugment": (partial(F.draw_randaugment, depth=3), F.apply_randaugment),
    "augmix": (F.draw_augmix, F.apply_augmix),
}
method = pytest.mark.parametrize(("draw", "apply"), METHODS.values(), ids=METHODS)
COUNT, BATCH = 3, 14


def pictures(*size, dtype=torch.float32):
    noise = torch.rand(*size, 3, 8, 9, generator=torch.Generator().manual_seed(0))
    return (noise * 255).to(dtype) if dtype == torch.uint8 else noise.to(dtype)


def draws(draw, **options):
    generator = torch.Generator().manual_seed(1)
    return [draw(BATCH, generator=generator, **options) for _ in range(COUNT)]


def stacked(parts):
    return type(parts[0])(*map(torch.stack, zip(*parts, strict=True)))


def squares(apply, images, draw):
    return apply(images, draw).pow(2).sum()


@method
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("mapped", ["both", "images", "draw"])
def test_vmap_is_a_loop(draw, apply, dtype, mapped):
    images, drawn = pictures(COUNT, BATCH, dtype=dtype), draws(draw)
    if mapped == "images":
        drawn = [drawn[0]] * COUNT
    if mapped == "draw":
        images = images[:1].expand_as(images)
    expected = torch.stack([apply(*pair) for pair in zip(images, drawn, strict=True)])

    found = {
        "both": lambda: vmap(apply)(images, stacked(drawn)),
        "images": lambda: vmap(lambda one: apply(one, drawn[0]))(images),
        "draw": lambda: vmap(lambda one: apply(images[0], one))(stacked(drawn)),
    }[mapped]()

    assert torch.equal(found, expected)


@method
def test_vmap_within_vmap_over_any_dimension_is_a_loop(draw, apply):
    images, drawn = pictures(BATCH, 2, COUNT), stacked(draws(draw))
    rows = [[apply(images[:, i, j], type(drawn)(*[part[j] for part in drawn])) for i in range(2)]
            for j in range(COUNT)]  # fmt: skip

    found = vmap(vmap(apply, (1, None)), (2, 0))(images, drawn)

    assert torch.equal(found, torch.stack([torch.stack(row) for row in rows]))


@method
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gradients_of_transforms_are_those_of_autograd(draw, apply):
    images, drawn = pictures(COUNT, BATCH), draws(draw)
    leaf = images.clone().requires_grad_()
    sum(squares(apply, *pair) for pair in zip(leaf, drawn, strict=True)).backward()

    mapped = vmap(grad(partial(squares, apply)))(images, stacked(drawn))
    outside = images.clone().requires_grad_()
    squares(vmap(apply), outside, stacked(drawn)).backward()

    torch.testing.assert_close(mapped, leaf.grad)
    torch.testing.assert_close(outside.grad, leaf.grad)


@method
def test_strengths_have_the_gradient_of_autograd(draw, apply):
    images, drawn = pictures(BATCH), draws(draw)[0]

    def loss(strengths):
        return squares(apply, images, drawn._replace(strengths=strengths))

    leaf = drawn.strengths.clone().requires_grad_()
    loss(leaf).backward()

    torch.testing.assert_close(grad(loss)(drawn.strengths), leaf.grad)


@pytest.mark.compile
@method
@pytest.mark.parametrize(
    ("dtype", "layout"),
    each_once([torch.uint8, torch.float32], [torch.contiguous_format, torch.channels_last]),
)
def test_compiled_images_are_equal_to_the_bit(draw, apply, dtype, layout):
    images, drawn = pictures(BATCH, dtype=dtype).to(memory_format=layout), draws(draw)[0]
    compiled = torch.compile(apply, fullgraph=True, backend="aot_eager")

    found, expected = compiled(images, drawn), apply(images, drawn)

    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()


@pytest.mark.compile
@method
def test_compiled_gradients_are_those_of_autograd(draw, apply):
    drawn = draws(draw, depth=1)[0]  # each operation is traced for seconds
    compiled = torch.compile(apply, fullgraph=True, backend="aot_eager")
    leaves = [pictures(BATCH).requires_grad_() for _ in range(2)]

    for leaf, function in zip(leaves, (compiled, apply), strict=True):
        squares(function, leaf, drawn).backward()

    torch.testing.assert_close(leaves[0].grad, leaves[1].grad)


@method
@pytest.mark.parametrize("transform", ["vmap", pytest.param("compile", marks=pytest.mark.compile)])
def test_transforms_call_the_compiled_loops(draw, apply, transform, monkeypatch):
    called = []
    monkeypatch.setattr(_compiled, "serves", lambda images, *_: called.append(images.shape))
    images, drawn = pictures(COUNT, BATCH, dtype=torch.uint8), draws(draw)

    if transform == "vmap":
        vmap(apply)(images, stacked(drawn))
    else:
        torch.compile(apply, fullgraph=True, backend="eager")(images[0], drawn[0])

    assert called == [(COUNT * BATCH if transform == "vmap" else BATCH, 3, 8, 9)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8])
@pytest.mark.parametrize("batch", [0, 1, BATCH])
def test_masked_operations_are_the_grouped_ones(batch, dtype):
    images = pictures(batch, dtype=dtype)
    generator = torch.Generator().manual_seed(2)
    operations, strengths = F.draw_augmix(batch, generator=generator)[:2]
    chains = operations.flatten(1), strengths.flatten(1)

    assert torch.equal(apply_by_mask(images, *chains), apply_operations(images, *chains))
