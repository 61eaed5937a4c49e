"""Train a GAN on handwritten digits: two networks, each with a loss and an optimizer.

The data are the 1,797 scans of 8 x 8 pixels that ship with scikit-learn; nothing is downloaded.
The networks are a small DCGAN (Radford et al., https://arxiv.org/abs/1511.06434). Samples are
drawn with an average of the generator's weights.

    python examples/gan.py                       # about a minute on a core; writes gan.png
    python examples/gan.py --epochs 20 --picture samples.png
"""

import argparse
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, pad
from torch.utils.data import DataLoader, TensorDataset

from composable import State, Trainer, Update
from composable.algorithms import EMA
from composable.utils.reproducibility import seed_context

NOISE = 32
"""The numbers from which an image is generated."""


class GAN(nn.Module):
    """A generator of images of 8 x 8 pixels, and a discriminator."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(NOISE, 2 * width, 2, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1),
            nn.Tanh(),
        )
        self.discriminator = nn.Sequential(
            nn.Conv2d(1, width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 1, 2),
            nn.Flatten(0),
        )

    def forward(self, noise: Tensor) -> Tensor:
        """Generate images: what `trainer.predict` and exports call."""
        return self.generator(noise)


def noise_like(images: Tensor) -> Tensor:
    """Draw the noise for as many images."""
    return torch.randn(len(images), NOISE, 1, 1, dtype=images.dtype, device=images.device)


def discriminator_loss(model: GAN, batch: list[Tensor]) -> dict[str, Tensor]:
    """Tell scans from generated images."""
    (images,) = batch
    generated = model.generator(noise_like(images)).detach()
    real, fake = model.discriminator(images), model.discriminator(generated)
    on_real = binary_cross_entropy_with_logits(real, torch.ones_like(real))
    on_fake = binary_cross_entropy_with_logits(fake, torch.zeros_like(fake))
    return {"loss": on_real + on_fake, "real": on_real, "fake": on_fake}


def generator_loss(model: GAN, batch: list[Tensor]) -> Tensor:
    """Generate images that the discriminator takes for scans."""
    (images,) = batch
    fake = model.discriminator(model.generator(noise_like(images)))
    return binary_cross_entropy_with_logits(fake, torch.ones_like(fake))


def scans() -> Tensor:
    """Load the scans, between -1 and 1."""
    from sklearn.datasets import load_digits

    return torch.tensor(load_digits().images).float()[:, None] / 8 - 1


def build(
    images: Tensor, seed: int = 0, *, lr: float = 1e-3, max_duration: str = "60ep"
) -> Trainer:
    """Return a Trainer of the two networks.

    Args:
        images: What to generate.
        seed: The seed of the weights, the order of the data and the noise.
        lr: The learning rate of both.
        max_duration: The length of training.
    """
    with seed_context(seed):
        model = GAN()
    adam = partial(torch.optim.Adam, lr=lr, betas=(0.5, 0.999))
    loader = DataLoader(TensorDataset(images), batch_size=64, shuffle=True, drop_last=True)
    return Trainer(
        model,
        train_dataloader=loader,
        updates=[
            Update(
                "discriminator",
                loss=discriminator_loss,
                parameters="discriminator.*",
                optimizer=adam,
                mean_over="examples",
            ),
            Update(
                "generator",
                loss=generator_loss,
                parameters="generator.*",
                optimizer=adam,
                mean_over="examples",
                algorithms=[EMA(half_life="50ba")],
            ),
        ],
        max_duration=max_duration,
        progress_bar=False,
        seed=seed,
    )


def samples(trainer: Trainer, count: int, seed: int = 0) -> Tensor:
    """Generate images with the averaged weights of the generator."""
    noise = torch.randn(count, NOISE, 1, 1, generator=torch.Generator().manual_seed(seed))
    (images,) = trainer.predict([noise])
    return images


def draw(rows: list[Tensor], path: Path) -> None:
    """Draw rows of images, each pixel as a square of 4 x 4."""
    import matplotlib as mpl

    mpl.use("Agg")  # no window is needed, and a display may be missing
    from matplotlib.image import imsave

    padded = [torch.cat(list(pad(row[:, 0], (1, 1, 1, 1), value=-1)), dim=1) for row in rows]
    picture = torch.cat(padded).repeat_interleave(4, 0).repeat_interleave(4, 1)
    imsave(path, picture.numpy(), cmap="gray_r", vmin=-1, vmax=1)


def main() -> None:
    """Train once, print the losses, and draw samples below scans."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=60, help="default: %(default)s")
    parser.add_argument("--lr", type=float, default=1e-3, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument(
        "--picture", type=Path, default=Path("gan.png"), help="default: %(default)s"
    )
    given = parser.parse_args()
    images = scans()
    trainer = build(images, given.seed, lr=given.lr, max_duration=f"{given.epochs}ep")
    state: State = trainer.fit()
    for name, loss in state.losses.items():
        print(f"{name}: {loss.item():.3f}")
    drawn = samples(trainer, 60)
    if state.is_main_process:
        draw([images[:20], *drawn.split(20)], given.picture)


if __name__ == "__main__":
    main()
