"""Draw the pictures of the cards of RandAugment and AugMix, with the functions themselves.

python docs/methods/augmentations_picture.py
"""

from pathlib import Path

import torch

import composable.functional as F


def rows_of(images: torch.Tensor, columns: int, gap: int = 6) -> torch.Tensor:
    """Images side by side, in rows, on white."""
    framed = torch.nn.functional.pad(images, (0, gap, 0, gap), value=255)
    rows = framed.unflatten(0, (-1, columns)).permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)
    return rows[:-gap, :-gap]


def main() -> None:
    """Write randaugment.png and augmix.png beside this file."""
    from matplotlib.image import imsave
    from sklearn.datasets import load_sample_image

    photo = torch.from_numpy(load_sample_image("flower.jpg").copy()).permute(2, 0, 1)
    photo = photo[:, 30:390, 140:500].unflatten(1, (-1, 3)).unflatten(3, (-1, 3))
    photo = photo.float().mean((2, 4)).round().to(torch.uint8)  # 120 x 120
    five = photo.expand(5, -1, -1, -1)
    for name, function in {"randaugment": F.randaugment, "augmix": F.augmix}.items():
        rows = []
        for severity in (3, 9):
            generator = torch.Generator().manual_seed(4)
            rows += [photo[None], function(five, severity=severity, generator=generator)]
        picture = rows_of(torch.cat(rows), columns=6)
        imsave(Path(__file__).with_name(f"{name}.png"), picture.numpy())


if __name__ == "__main__":
    main()
