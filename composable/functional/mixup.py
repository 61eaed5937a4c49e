"""MixUp: train on convex combinations of pairs of examples.

Zhang, Cisse, Dauphin and Lopez-Paz, "mixup: Beyond Empirical Risk Minimization", ICLR 2018,
https://arxiv.org/abs/1710.09412
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from composable._support.checks import (
    Check,
    check_blendable,
    check_count,
    check_draw,
    check_flag,
    check_one_batch,
    check_partners,
    check_tensor,
    checked,
    within,
)
from composable._support.devices import compute_dtype, generator_device, send

from .mixed import MixedBatch, broadcast_weight, draw_beta, may_write_out, select_rows, without_nan

_SEVERAL = "mix several with one draw: see draw_mixup and apply_mixup"
_options: dict[str, Check] = {"alpha": within(0, ends="()"), "per_sample": check_flag}


class MixUpDraw(NamedTuple):
    """The draw of `mixup`: a partner for each example, and the weight of the example itself."""

    permutation: Int[Tensor, " batch"]
    weight: Float[Tensor, " *batch"]


@checked(**_options)
def mixup(
    inputs: Shaped[Tensor, " *shape"],
    targets: Shaped[Tensor, " *dense"],
    *,
    alpha: float = 0.2,
    per_sample: bool = False,
    generator: torch.Generator | None = None,
) -> MixedBatch:
    r"""Replace each example by a convex combination with another example of the batch.

    $$x'_i = w x_i + (1 - w) x_{p(i)}, \quad w = \max(v, 1 - v), \quad
    v \sim \mathrm{Beta}(\alpha, \alpha)$$

    with a random permutation $p$; $v$ is the paper's $\lambda$. Folding it to at least one half
    does not change the distribution, because the pair is exchangeable, and guarantees that the
    first target has the larger weight.

    Args:
        inputs: Floats, `[batch, ...]`.
        targets: Class indices, class probabilities or regression targets, `[batch, ...]`.
        alpha: Both parameters of the Beta distribution, above 0. Near 0 examples are almost
            unchanged; at 1 the weight is uniform; for large values it is close to one half.
        per_sample: Draw one weight per example instead of one per batch.
        generator: Random number generator. Default: torch's global generator.

    Returns:
        The mixed inputs, with the shape, dtype, device and memory format of `inputs`; both
        targets; and the weight of the first. Its methods `loss` and `soft_targets` combine them.
        Where a mixed value is NaN, as between equal infinities, the example's value is kept.

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
    check_one_batch(inputs, targets, check=check_blendable, advice=_SEVERAL)
    draw = draw_mixup.unchecked(
        inputs.shape[0], alpha=alpha, per_sample=per_sample, generator=generator
    )
    return apply_mixup.unchecked(inputs, targets, draw)


@checked(batch_size=check_count, **_options)
def draw_mixup(
    batch_size: int,
    *,
    alpha: float = 0.2,
    per_sample: bool = False,
    generator: torch.Generator | None = None,
) -> MixUpDraw:
    """Draw the partners and the weight of one batch.

    Args:
        batch_size: Number of examples, 0 or more.
        alpha: Both parameters of the Beta distribution, above 0; see `mixup`.
        per_sample: Draw one weight per example instead of one per batch.
        generator: Random number generator. Default: torch's global generator.

    Returns:
        A permutation, and a float64 weight in [1/2, 1] (or `batch_size` weights), on the device of
        the generator, the CPU by default: a seed gives the same draw for every device of the batch.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `alpha` is not above 0, or `batch_size` is negative.

    Example:
        >>> draw = draw_mixup(4, generator=torch.Generator().manual_seed(0))
        >>> sorted(draw.permutation.tolist())
        [0, 1, 2, 3]
    """
    size = (batch_size,) if per_sample else ()
    device = generator_device(generator)
    permutation = torch.randperm(batch_size, generator=generator, device=device)
    share = draw_beta(alpha, size, generator=generator)
    # Measured: `1 - share` takes three times as long for one number.
    return MixUpDraw(permutation, torch.maximum(share, torch.rsub(share, 1)))


def _check_draw(inputs: Tensor, targets: Tensor, draw: MixUpDraw) -> None:
    check_one_batch(inputs, targets, check=check_blendable, advice=_SEVERAL)
    check_draw(draw, MixUpDraw, "draw_mixup")
    check_partners(draw.permutation, inputs)
    check_tensor("draw.weight", draw.weight)


@checked(_check_draw)
def apply_mixup(
    inputs: Shaped[Tensor, " *shape"], targets: Shaped[Tensor, " *dense"], draw: MixUpDraw
) -> MixedBatch:
    """Combine each example with its partner: the deterministic half of `mixup`.

    Args:
        inputs: Floats, `[batch, ...]`.
        targets: Targets, `[batch, ...]`.
        draw: The result of `draw_mixup`.

    Returns:
        The mixed batch; see `mixup`. At weight 1 its inputs equal `inputs` exactly.

    Raises:
        TypeError: An argument is of the wrong type, or the inputs are integers.
        ValueError: Inputs, targets and draw have different batch sizes.

    Example:
        >>> draw = MixUpDraw(torch.tensor([1, 0]), torch.tensor(0.75))
        >>> apply_mixup(torch.tensor([[0.0], [8.0]]), torch.tensor([0, 1]), draw).inputs
        tensor([[2.],
                [6.]])
    """
    partner = send(draw.permutation, inputs.device)
    share = broadcast_weight(draw.weight, inputs)
    other = select_rows(inputs, partner)
    # Measured: the memory of another tensor costs as much as the interpolation.
    out = other if may_write_out(other, share) else None
    mixed = without_nan(torch.lerp(other, inputs, share, out=out), inputs)
    # The weight of the losses is not rounded to the dtype of the inputs, which may be 16-bit.
    weight = send(draw.weight, inputs.device, compute_dtype(inputs.dtype))
    return MixedBatch(mixed, targets, select_rows(targets, partner), weight)
