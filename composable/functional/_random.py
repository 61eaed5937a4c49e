"""What `torch.distributions` has, but from a generator.

A few numbers are drawn on the CPU (or wherever the generator lives) in float64: so a seed means
the same draw whatever the device and dtype of the batch.
"""

from typing import Any

import torch
from torch import Tensor

__all__ = [
    "draw_beta",
    "draw_dirichlet",
    "draw_exponential",
    "draw_uniform",
    "home",
    "numbers",
]


def home(generator: torch.Generator | None) -> torch.device:
    """Say on which device a draw is made."""
    return torch.device("cpu") if generator is None else generator.device


def draw_uniform(size: tuple[int, ...], *, generator: torch.Generator | None) -> Tensor:
    """Draw from [0, 1)."""
    # In a graph a size that changes goes with no generator, not even with None.
    given = {} if generator is None else {"generator": generator}
    return torch.rand(size, **given, device=home(generator), dtype=torch.float64)  # type: ignore[call-overload, no-any-return]


def draw_exponential(size: tuple[int, ...], *, generator: torch.Generator | None) -> Tensor:
    """Draw from Exponential(1)."""
    # rand is in [0, 1): log1p(-rand) is finite, where log(rand) may be minus infinity.
    return -torch.log1p(-draw_uniform(size, generator=generator))


def draw_beta(alpha: float, size: tuple[int, ...], *, generator: torch.Generator | None) -> Tensor:
    """Draw from Beta(alpha, alpha), for any alpha > 0.

    A Beta variable is G1 / (G1 + G2) with two Gammas. For small alpha both underflow to zero,
    so it is computed from their logarithms: Gamma(alpha) is distributed as Gamma(alpha + 1) * U
    ** (1 / alpha).
    """
    shape = torch.full((2, *size), alpha + 1.0, device=home(generator), dtype=torch.float64)
    gammas = torch._standard_gamma(shape, generator=generator)
    exponentials = draw_exponential((2, *size), generator=generator)
    # The difference comes before the division, which may overflow: inf - inf would be NaN.
    log_ratio = gammas[0].log() - gammas[1].log() + (exponentials[1] - exponentials[0]) / alpha
    return log_ratio.sigmoid()


def draw_dirichlet(
    alpha: float, size: tuple[int, ...], *, generator: torch.Generator | None
) -> Tensor:
    """Draw from Dirichlet(alpha, ..., alpha) along the first dimension, for any alpha > 0.

    From the logarithms of Gammas, as `draw_beta`.
    """
    shape = torch.full(size, alpha + 1.0, device=home(generator), dtype=torch.float64)
    log_gammas = torch._standard_gamma(shape, generator=generator).log()
    log_gammas = log_gammas - draw_exponential(size, generator=generator) / alpha
    # The largest becomes zero before the others are set against it, whatever alpha is.
    return log_gammas.softmax(0)


def numbers(draw: Tensor) -> Any:
    """Give the numbers of a draw as lists, where that makes nobody wait, and None elsewhere.

    What was drawn on the CPU is read at once, even where the batch is on a GPU. In a graph and
    under vmap there are no numbers yet.
    """
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    if torch.compiler.is_compiling() or draw.device.type != "cpu" or wrapped(draw):
        return None
    return draw.tolist()
