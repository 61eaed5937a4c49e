"""Train a small residual network to read digits that are pasted on photographs.

The digits and the two photographs ship with scikit-learn; nothing is downloaded. An image is a
32 x 32 crop of a photograph, with an enlarged bright digit at a random place. `build` is the
entry for a comparison of methods.
"""

import sys
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate
from torch.utils.data import DataLoader, TensorDataset

from composable import Evaluator, Trainer
from composable.functional import ResidualBlock
from composable.metrics import accuracy
from composable.optim import cosine
from composable.utils.reproducibility import seed_context

try:
    from sklearn.datasets import load_digits, load_sample_images
    from sklearn.model_selection import train_test_split
except ModuleNotFoundError as error:
    sys.exit(f'{error}. Install the demo dependencies: pip install ".[demo]".')

SIZE = 32
IMAGES = {"train": 4096, "validation": 1000, "test": 1000}
MEAN, STD = 0.45, 0.28


@cache
def images() -> dict[str, TensorDataset]:
    """Make the images for training, validation and test, each of other digits and other crops."""
    scans, labels = load_digits(return_X_y=True)
    rest, test = train_test_split(
        np.arange(len(labels)), test_size=360, random_state=0, stratify=labels
    )
    train, validation = train_test_split(rest, test_size=300, random_state=0, stratify=labels[rest])
    photographs = [
        torch.as_tensor(one.copy()).permute(2, 0, 1) / 255 for one in load_sample_images().images
    ]
    # The left 60 % of the photographs are for training, 20 % for validation and 20 % for test.
    parts = {"train": (train, 0, 0.6), "validation": (validation, 0.6, 0.8), "test": (test, 0.8, 1)}
    made = {}
    for i, (name, (chosen, left, right)) in enumerate(parts.items()):
        widths = [one.shape[2] for one in photographs]
        columns = [
            one[:, :, int(left * width) : int(right * width)]
            for one, width in zip(photographs, widths, strict=True)
        ]
        generator = np.random.default_rng(i)
        drawn = generator.permutation(np.resize(chosen, IMAGES[name]))
        inputs = [_paste(scans[one].reshape(8, 8), columns, generator) for one in drawn]
        made[name] = TensorDataset(
            (torch.stack(inputs) - MEAN) / STD, torch.as_tensor(labels[drawn]).long()
        )
    return made


def _paste(scan: np.ndarray, photographs: list[Tensor], generator: np.random.Generator) -> Tensor:
    """Return a crop of a photograph with a digit: its size, place, colour and opacity vary."""
    photograph = photographs[generator.integers(len(photographs))]
    top, left = (generator.integers(n - SIZE + 1) for n in photograph.shape[1:])
    crop = photograph[:, top : top + SIZE, left : left + SIZE].clone()
    size = int(generator.integers(20, 29))
    digit = torch.as_tensor(scan / 16, dtype=torch.float32)[None, None]
    opacity = interpolate(digit, size=(size, size), mode="bilinear")[0]
    opacity = opacity * generator.uniform(0.8, 1.0)
    colour = torch.as_tensor(generator.uniform(0.7, 1.0, size=(3, 1, 1)), dtype=torch.float32)
    top, left = generator.integers(SIZE - size + 1, size=2)
    place = crop[:, top : top + size, left : left + size]
    place.lerp_(colour.expand_as(place), opacity)
    return crop


class Residual(nn.Module):
    """Two convolutions with a shortcut, which pools and widens where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, inputs: Tensor) -> Tensor:
        """Map images to images."""
        return torch.relu(self.shortcut(inputs) + self.convolutions(inputs))


BLOCKS = ResidualBlock(
    Residual,
    shortcut=lambda block, inputs: torch.relu(block.shortcut(inputs)),
    residual=lambda block: block.convolutions,
)
"""The residual blocks, for `StochasticDepth(target=BLOCKS)`."""


def residual_net(seed: int, width: int = 16) -> nn.Module:
    """Build a ResNet-8: a convolution, three residual blocks, and a linear layer."""
    with seed_context(seed):
        return nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            Residual(width, width),
            Residual(width, 2 * width, stride=2),
            Residual(2 * width, 4 * width, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * width, 10),
        )


def build(
    algorithms: Any,
    seed: int,
    *,
    lr: float = 0.1,
    max_duration: Any = "8ep",
    optimizers: Any = None,
    schedulers: Any = None,
    precision: str = "fp32",
    batch_size: int = 64,
) -> Trainer:
    """Build a run; without `optimizers`, it is SGD with Nesterov momentum and a cosine."""
    torch.set_num_threads(1)  # the network is too small to benefit from more threads
    data = images()
    sgd = partial(torch.optim.SGD, lr=lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    return Trainer(
        residual_net(seed),
        train_dataloader=DataLoader(
            data["train"], batch_size=batch_size, shuffle=True, drop_last=True
        ),
        eval_dataloader=[
            Evaluator(name, DataLoader(data[name], batch_size=250))
            for name in ("validation", "test")
        ],
        loss_fn=cross_entropy,
        optimizers=sgd if optimizers is None else optimizers,
        schedulers=cosine(warmup="0.1dur") if schedulers is None else schedulers,
        max_duration=max_duration,
        metrics={"accuracy": accuracy},
        algorithms=algorithms,
        precision=precision,
        progress_bar=False,
        seed=seed,
    )
