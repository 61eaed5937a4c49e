"""Random samples from a `torch.Generator`, which `torch.distributions` does not support.

Samples are float64 tensors on the device of the generator, the CPU by default. So a seed gives the
same samples for every device and dtype of the batch.
"""

from collections.abc import Sequence
from math import prod, sqrt

import torch
from torch import Tensor

from composable._support.devices import generator_device

_SMALL = 1e-300


def draw_uniform(size: tuple[int, ...], *, generator: torch.Generator | None) -> Tensor:
    """Draw from the uniform distribution on [0, 1)."""
    # In a compiled graph a dynamic size can't be combined with generator=None.
    given = {} if generator is None else {"generator": generator}
    return torch.rand(size, **given, device=generator_device(generator), dtype=torch.float64)  # type: ignore[call-overload, no-any-return]


def draw_exponential(size: tuple[int, ...], *, generator: torch.Generator | None) -> Tensor:
    """Draw from Exponential(1)."""
    # rand is in [0, 1): log1p(-rand) is finite, but log(rand) may be -inf.
    return -torch.log1p(-draw_uniform(size, generator=generator))


def draw_dirichlet(
    alpha: float, size: tuple[int, ...], *, generator: torch.Generator | None
) -> Tensor:
    """Draw from Dirichlet(alpha, ..., alpha) along the first dimension, for any alpha > 0.

    It is computed from the logarithms of Gamma variables, like `draw_beta`.
    """
    shape = torch.full(size, alpha + 1.0, device=generator_device(generator), dtype=torch.float64)
    log_gammas = torch._standard_gamma(shape, generator=generator).log()
    exponentials = draw_exponential(size, generator=generator)
    if alpha < _SMALL:  # the division would overflow, for all of them at once
        exponentials = exponentials - exponentials.amin(0)
    log_gammas = log_gammas - exponentials / alpha
    # softmax subtracts the largest logarithm first, so it is stable for every alpha.
    return log_gammas.softmax(0)


def draw_weights(
    shape: Sequence[int], fan_in: int | None = None, *, generator: torch.Generator | None
) -> Tensor:
    """Draw a weight `[outputs, ...]` within ±1/√(fan in), in float32, as layers of PyTorch do."""
    bound = 1 / sqrt(prod(shape[1:]) if fan_in is None else fan_in)
    drawn = torch.empty(tuple(shape), device=generator_device(generator))
    return drawn.uniform_(-bound, bound, generator=generator)
