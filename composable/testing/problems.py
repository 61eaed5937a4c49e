"""Tiny models and batches for tests that run in milliseconds."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from composable.core.key import Key
from composable.utils.reproducibility import preserve_rng, seed_torch

CLASSES, SHAPE = 5, (3, 8, 8)


def image_batch(
    count: int = 6,
    *,
    shape: tuple[int, ...] = SHAPE,
    classes: int = CLASSES,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Draw inputs `[count, *shape]` from a normal distribution, and class indices `[count]`."""
    generator = Key(seed).fold("batch").generator()
    inputs = torch.randn(count, *shape, generator=generator, dtype=torch.float64).to(dtype)
    return inputs, torch.randint(classes, (count,), generator=generator)


def classifier(*, seed: int = 0) -> nn.Module:
    """Build an image classifier with strided convolutions, batch norm, pooling and dropout."""
    return built(
        lambda: nn.Sequential(
            nn.Conv2d(SHAPE[0], 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(16 * (SHAPE[1] // 4) * (SHAPE[2] // 4), CLASSES),
        ),
        seed=seed,
    )


def smooth_classifier(*, seed: int = 0) -> nn.Module:
    """Build the same without batch norm and dropout: examples do not interact."""
    kept = [m for m in classifier(seed=seed) if not isinstance(m, (nn.BatchNorm2d, nn.Dropout))]  # type: ignore[attr-defined]
    return nn.Sequential(*kept)


def feature_maps(*, seed: int = 0) -> nn.Module:
    """Build the layers of the classifier that return feature maps, in evaluation mode."""
    layers: Any = list(classifier(seed=seed).children())[:6]
    return nn.Sequential(*layers).eval()


def built(build: Callable[[], nn.Module], *, seed: int) -> nn.Module:
    """Call a function with seeded global generators, and restore them afterwards."""
    with preserve_rng():
        seed_torch(Key(seed).seed)
        return build()
