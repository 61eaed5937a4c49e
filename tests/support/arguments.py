"""Arguments for the public functions, by the size of the batch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from composable.testing.problems import CLASSES, image_batch
from tests.support.models import LENGTH, WORDS


def images(size: int) -> Tensor:
    """Return images `[size, 3, 8, 8]` within [0, 1], away from both ends."""
    return image_batch(size)[0].sigmoid()


def of_images(size: int) -> tuple[Tensor]:
    """Return images as the only argument."""
    return (images(size),)


def with_maps(size: int) -> tuple[Tensor, Tensor]:
    """Return inputs, and targets for each of their pixels."""
    return image_batch(size)[0], image_batch(size, seed=1)[0]


def with_strengths(low: float, high: float) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Images, and a strength for each."""
    return lambda size: (images(size), torch.linspace(low, high, size))


def rows(*shape: int) -> Callable[[int], Tensor]:
    """Build a function from a batch size to inputs that don't have the shape of images."""
    return lambda size: torch.randn(size, *shape)


def probabilities(size: int) -> tuple[Tensor]:
    """Return class probabilities."""
    return (torch.randn(size, CLASSES).softmax(1),)


def texts(size: int) -> tuple[dict[str, Tensor]]:
    """Embedded texts of eight tokens, with their masks."""
    return ({"input_ids": torch.randn(size, 8, 2), "attention_mask": torch.ones(size, 8)},)


def token_ids(size: int) -> Tensor:
    """Return texts as token ids."""
    return torch.randint(WORDS, (size, LENGTH))


def named(*seeds: int) -> tuple[dict[str, Tensor], ...]:
    """Named tensors of a small model."""

    def drawn(seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        shapes = {"weight": (3, 2), "bias": (3,)}
        return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}

    return tuple(map(drawn, seeds))


def seeded() -> torch.Generator:
    """Return a generator for the draw of a deterministic half."""
    return torch.Generator().manual_seed(0)


class Block(nn.Module):
    """A residual block."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.scale = 2.0  # blocks have attributes of any name
        self.conv = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        return x + self.scale * self.conv(x)


def model_of(*layers: Callable[[], nn.Module]) -> Callable[[int], tuple[Any, ...]]:
    """Build a function that returns a model of new layers, in training mode."""
    return lambda size: (nn.Sequential(*(layer() for layer in layers)),)
