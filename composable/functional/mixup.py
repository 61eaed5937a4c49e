"""Mixup: train on blends of pairs of examples.

Zhang, Cisse, Dauphin and Lopez-Paz, "mixup: Beyond Empirical Risk Minimization", ICLR 2018,
https://arxiv.org/abs/1710.09412
"""

from math import inf
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ._checks import (
    check_blendable,
    check_count,
    check_flag,
    check_generator,
    check_one_batch,
    check_partners,
    check_range,
    check_tensor,
)
from ._multi import accurate
from ._random import draw_beta, home
from ._spatial import examples
from .mixed import Mixed, across

__all__ = ["MixupDraw", "apply_mixup", "draw_mixup", "mixup"]


class MixupDraw(NamedTuple):
    """What `mixup` draws: a partner for each example, and the share that each one keeps."""

    permutation: Int[Tensor, " batch"]
    weight: Float[Tensor, " *batch"]


def mixup(
    inputs: Shaped[Tensor, " *shape"],
    targets: Shaped[Tensor, " *dense"],
    *,
    alpha: float = 0.2,
    per_sample: bool = False,
    generator: torch.Generator | None = None,
) -> Mixed:
    r"""Blend every example of a batch with another one of it.

    $$x'_i = w x_i + (1 - w) x_{p(i)}, \quad w = \max(v, 1 - v), \quad
    v \sim \mathrm{Beta}(\alpha, \alpha)$$

    with a random permutation $p$. The paper's $\lambda$ is our $v$. Folding it to at least one
    half changes nothing in distribution (the two of a pair swap roles) and says which target
    leads.

    Args:
        inputs: Floats, `[batch, ...]`.
        targets: Class indices, class probabilities or numbers to regress, `[batch, ...]`.
        alpha: Strength, above 0. Near 0 examples stay almost intact; at 1 every share is
            equally likely; large values blend half and half.
        per_sample: Draw one share per example rather than one per batch.
        generator: Source of randomness. Without one, torch's global generator.

    Returns:
        The mixed inputs, with the shape, dtype, device and memory layout of `inputs`; both
        targets; and the weight of the first. Its `loss` and `soft_targets` make use of them.

    Raises:
        TypeError: An argument is of the wrong type, or the inputs are integers.
        ValueError: `alpha` is not above 0, or the batch sizes differ.

    Example:
        >>> images, labels = torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
        >>> mixed = mixup(images, labels, generator=torch.Generator().manual_seed(0))
        >>> outputs = mixed.inputs.mean((2, 3)) @ torch.ones(3, 4)
        >>> mixed.loss(torch.nn.functional.cross_entropy, outputs).shape
        torch.Size([])
    """
    _check(inputs, targets)
    draw = draw_mixup(len(inputs), alpha=alpha, per_sample=per_sample, generator=generator)
    return apply_mixup(inputs, targets, draw)


def draw_mixup(
    batch_size: int,
    *,
    alpha: float = 0.2,
    per_sample: bool = False,
    generator: torch.Generator | None = None,
) -> MixupDraw:
    """Draw the partners and the weight of one batch.

    Args:
        batch_size: Number of examples, 0 or more.
        alpha: Strength, above 0; see `mixup`.
        per_sample: Draw one weight per example rather than one per batch.
        generator: Source of randomness. Without one, torch's global generator.

    Returns:
        A permutation, and a float64 weight in [1/2, 1] (or `batch_size` of them). Both lie on
        the CPU, or where the generator does: a seed means the same draw on every device.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `alpha` is not above 0, or `batch_size` is negative.

    Example:
        >>> draw = draw_mixup(4, generator=torch.Generator().manual_seed(0))
        >>> sorted(draw.permutation.tolist())
        [0, 1, 2, 3]
    """
    check_count("batch_size", batch_size)
    check_range("alpha", alpha, 0, inf, ends="()", advice="Leave mixup out to mix nothing.")
    check_flag("per_sample", per_sample)
    check_generator(generator)
    size = (batch_size,) if per_sample else ()
    permutation = torch.randperm(batch_size, generator=generator, device=home(generator))
    share = draw_beta(alpha, size, generator=generator)
    return MixupDraw(permutation, torch.maximum(share, 1 - share))


def apply_mixup(
    inputs: Shaped[Tensor, " *shape"], targets: Shaped[Tensor, " *dense"], draw: MixupDraw
) -> Mixed:
    """Blend every example with the partner that was drawn for it: the deterministic half.

    Args:
        inputs: Floats, `[batch, ...]`.
        targets: Targets, `[batch, ...]`.
        draw: What `draw_mixup` gave.

    Returns:
        The mixed batch; see `mixup`. At weight 1 its inputs equal `inputs` exactly.

    Raises:
        TypeError: An argument is of the wrong type, or the inputs are integers.
        ValueError: Inputs, targets and draw do not belong to one batch size.

    Example:
        >>> draw = MixupDraw(torch.tensor([1, 0]), torch.tensor(0.75))
        >>> apply_mixup(torch.tensor([[0.0], [8.0]]), torch.tensor([0, 1]), draw).inputs
        tensor([[2.],
                [6.]])
    """
    _check(inputs, targets)
    if not isinstance(draw, MixupDraw):
        raise TypeError(f"draw is {draw!r}, but must be a MixupDraw, such as draw_mixup gives.")
    check_partners(draw.permutation, inputs)
    check_tensor("draw.weight", draw.weight)
    partner = draw.permutation.to(inputs.device, non_blocking=True)
    blended = torch.lerp(examples(inputs, partner), inputs, across(draw.weight, inputs))
    # The weight of the losses is not rounded to the dtype of the inputs, which may be a short
    # one.
    weight = draw.weight.to(inputs.device, accurate(inputs.dtype), non_blocking=True)
    return Mixed(blended, targets, targets[partner], weight)


def _check(inputs: Tensor, targets: Tensor) -> None:
    several = "Mix several with one draw: see draw_mixup and apply_mixup."
    check_blendable("inputs", inputs, advice=several)
    check_tensor("targets", targets, advice=several)
    check_one_batch(inputs, targets)
