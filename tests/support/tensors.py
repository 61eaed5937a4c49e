"""Tensors that the tests of the functions share."""

import torch
from torch import Tensor

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SIZES = [(7,), (5, 6), (3, 4, 5)]
"""The sizes of a signal, an image and a volume."""


def seeded(seed: int = 0) -> torch.Generator:
    """Return a new generator."""
    return torch.Generator().manual_seed(seed)


def uniform(
    batch: int = 4, size: tuple[int, ...] = (5, 6), dtype: torch.dtype = torch.float32
) -> Tensor:
    """Draw images `[batch, 3, *size]` with values in [1, 101), so that integers differ too."""
    return (1 + 100 * torch.rand(batch, 3, *size, generator=seeded())).to(dtype)


def noise(*shape: int, seed: int = 0) -> Tensor:
    """Draw uint8 images."""
    return torch.randint(256, shape, dtype=torch.uint8, generator=seeded(seed))


def named(seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Draw a matrix and a scalar, as named tensors."""
    generator = seeded(seed)
    return {
        "weight": torch.randn(3, 4, generator=generator).to(dtype),
        "bias": torch.randn((), generator=generator).to(dtype),
    }


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw normally distributed values."""
    return torch.randn(shape, generator=seeded(seed)).to(dtype)
