"""RandAugment and AugMix through other libraries, on batches of uint8 images: for `methods.py`.

"the same draw through Pillow" applies the very operations that we drew, image by image, and its
result is held against ours. The others draw from ranges of their own; timm's probability of 1/2 for
an operation is set to 1, as all others have it.
"""

import os
from collections.abc import Callable
from itertools import cycle

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

import composable.functional as F

Run = Callable[[], object]


def affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)


# In the order of the numbers in a draw.
PILLOW = [
    lambda i, s: ImageOps.autocontrast(i),
    lambda i, s: ImageOps.equalize(i),
    lambda i, s: ImageOps.posterize(i, int(s)),
    lambda i, s: i.rotate(s, Image.Resampling.BILINEAR),
    lambda i, s: ImageOps.solarize(i, int(s)),
    lambda i, s: affine(i, 1, s, 0, 0, 1, 0),
    lambda i, s: affine(i, 1, 0, 0, s, 1, 0),
    lambda i, s: affine(i, 1, 0, int(s * i.width), 0, 1, 0),
    lambda i, s: affine(i, 1, 0, 0, 0, 1, int(s * i.height)),
    *(
        lambda i, s, enhance=enhance: enhance(i).enhance(s)
        for enhance in (
            ImageEnhance.Color,
            ImageEnhance.Contrast,
            ImageEnhance.Brightness,
            ImageEnhance.Sharpness,
        )
    ),
]


def pictures(images: Tensor) -> list[Image.Image]:
    return [Image.fromarray(i) for i in images.permute(0, 2, 3, 1).contiguous().numpy()]


def tensor(images: list[Image.Image]) -> Tensor:
    return torch.from_numpy(np.stack([np.asarray(i) for i in images])).permute(0, 3, 1, 2)


def chain(image: Image.Image, operations: list[int], strengths: list[float]) -> Image.Image:
    for number, strength in zip(operations, strengths, strict=True):
        if number >= 0:
            image = PILLOW[number](image, strength)
    return image


def randaugment_by_pillow(images: Tensor, draw: F.RandAugmentDraw) -> Tensor:
    drawn = zip(draw.operations.T.tolist(), draw.strengths.T.tolist(), strict=True)
    return tensor([chain(i, *d) for i, d in zip(pictures(images), drawn, strict=True)])


def augmix_by_pillow(images: Tensor, draw: F.AugMixDraw) -> Tensor:
    mixed = []
    for index, image in enumerate(pictures(images)):
        array = np.asarray(image, dtype=np.float32)
        mix = np.zeros_like(array)
        for number, weight in enumerate(draw.chain_weights[:, index].tolist()):
            one = (part[:, number, index].tolist() for part in draw[:2])
            mix += weight * np.asarray(chain(image, *one), dtype=np.float32)
        weight = draw.weight[index].item()
        mixed.append((array + weight * (mix - array) + 0.5).astype(np.uint8))
    return torch.from_numpy(np.stack(mixed)).permute(0, 3, 1, 2)


def against_pillow(method: str, images: Tensor) -> tuple[Run, Run]:
    """Return runs of a method and of Pillow with the same draws: each call uses the next draw."""
    draw_of, apply = getattr(F, f"draw_{method}"), getattr(F, f"apply_{method}")
    pillow = {"randaugment": randaugment_by_pillow, "augmix": augmix_by_pillow}[method]
    draws = [
        draw_of(len(images), generator=torch.Generator().manual_seed(seed)) for seed in range(64)
    ]
    # On average: where a level is off by one, the next operation may turn it into many.
    difference = apply(images, draws[0]).cpu().int() - pillow(images.cpu(), draws[0]).int()
    assert difference.abs().double().mean() < 1
    ours, theirs = cycle(draws), cycle(draws)
    generator = torch.Generator().manual_seed(0)

    def composable() -> Tensor:
        draw_of(len(images), generator=generator)  # its time is ours, its draw is not used
        return apply(images, next(ours))

    return composable, lambda: pillow(images.cpu(), next(theirs)).to(images.device)


def on_tensors(run: Run) -> Run:
    """Return a run that uses operations on tensors, even if Numba is installed."""

    def call() -> None:
        os.environ["COMPOSABLE_COMPILED"] = "0"
        try:
            run()
        finally:
            del os.environ["COMPOSABLE_COMPILED"]

    return call


def image_by_image(operation: Callable, images: Tensor) -> Run:
    """Return a run that applies an operation on pictures to each image of a batch."""
    host = images.cpu()
    return lambda: tensor([operation(i) for i in pictures(host)]).to(images.device)
