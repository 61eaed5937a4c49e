"""Draw the pictures of the cards of what changes images, with the functions themselves.

python docs/methods/augmentations_picture.py
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

import composable.functional as F

SIDE = 120


def photos() -> Tensor:
    """Load the photos of scikit-learn, a flower and a temple: `[2, 3, 120, 120]`."""
    from sklearn.datasets import load_sample_image

    corners = {"flower.jpg": (30, 140), "china.jpg": (50, 230)}
    cut = [
        torch.from_numpy(load_sample_image(name).copy())[top : top + 360, left : left + 360]
        for name, (top, left) in corners.items()
    ]
    smaller = torch.stack(cut).permute(0, 3, 1, 2).unflatten(2, (-1, 3)).unflatten(4, (-1, 3))
    return smaller.float().mean((3, 5)).round().to(torch.uint8)


def rows_of(images: Tensor, columns: int, gap: int = 6) -> Tensor:
    """Arrange images side by side, in rows, on white."""
    framed = torch.nn.functional.pad(images, (0, gap, 0, gap), value=255)
    rows = framed.unflatten(0, (-1, columns)).permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)
    return rows[:-gap, :-gap]


def on_white(images: Tensor) -> Tensor:
    """Smaller images, each on a white square."""
    height, width = images.shape[2:]
    return torch.nn.functional.pad(images, (0, SIDE - width, 0, SIDE - height), value=255)


def pictures() -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the picture of each card."""
    both = photos()
    flower = both[:1]
    five = flower.expand(5, -1, -1, -1)
    for name, function in {"randaugment": F.randaugment, "augmix": F.augmix}.items():
        rows = []
        for severity in (3, 9):
            generator = torch.Generator().manual_seed(4)
            rows += [flower, function(five, severity=severity, generator=generator)]
        yield name, rows_of(torch.cat(rows), columns=6)

    batch, which = both.repeat(10, 1, 1, 1).float() / 255, torch.arange(20) % 2
    for name, function, options in [
        ("mixup", F.mixup, {"alpha": 1.0}),
        ("cutmix", F.cutmix, {}),
    ]:
        drawn = torch.Generator().manual_seed(11)
        mixed = function(batch, which, per_sample=True, generator=drawn, **options)
        chosen = mixed.inputs[mixed.targets < mixed.partner_targets][:4]  # a flower with a temple
        chosen = chosen.mul(255).round().to(torch.uint8)
        yield name, rows_of(torch.cat([both, chosen]), columns=6)
    drawn = torch.Generator().manual_seed(2)
    holes = F.cutout(five, num_holes=2, length=0.35, generator=drawn)
    yield "cutout", rows_of(torch.cat([flower, holes]), columns=6)
    thinner = [
        on_white(F.colout(flower, p_row=share, p_col=share, generator=drawn))
        for share in (0.15, 0.3, 0.45)
    ]
    yield "colout", rows_of(torch.cat([flower, *thinner]), columns=4)
    smaller = [
        on_white(F.resize_batch(flower, scale_factor=scale, mode=mode, generator=drawn))
        for mode in ("resize", "crop")
        for scale in (0.5, 0.75)
    ]
    yield "resize_batch", rows_of(torch.cat([flower, *smaller]), columns=5)


def main() -> None:
    """Write a PNG beside this file for each."""
    from matplotlib.image import imsave

    for name, picture in pictures():
        imsave(Path(__file__).with_name(f"{name}.png"), picture.numpy())


if __name__ == "__main__":
    main()
