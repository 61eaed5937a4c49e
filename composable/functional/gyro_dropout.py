"""Gyro dropout: dropout with a fixed pool of reused masks.

Lee, Kim, Park and Kim, "Gyro Dropout: Maximizing Ensemble Effect in Neural Network Training",
MLSys 2022
"""

from math import prod
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Int64, Shaped
from torch import Tensor, nn

from composable._support.checks import (
    check_count,
    check_generator,
    check_order,
    check_range,
    checked,
    minimum,
)
from composable._support.devices import generator_device
from composable._support.recomputation import refuse_recomputation
from composable._support.spatial import laid_out_like

from ._reclass import keeps_forward_of, reclass
from .replace_modules import replace_or_report

__all__ = ["GyroDropoutLayer", "gyro_dropout"]

_MASK = 0xFFFFFFFF


@checked(iters_per_epoch=minimum(1), max_epoch=minimum(1))
def gyro_dropout(
    model: nn.Module,
    *,
    p: float = 0.5,
    sigma: int = 256,
    tau: int = 16,
    iters_per_epoch: int,
    max_epoch: int,
    generator: torch.Generator | None = None,
) -> nn.Module:
    r"""Replace dropouts by layers that reuse a fixed pool of masks.

    Each layer has `sigma` masks over the features (all dimensions but the first), whose entries
    are 0 with probability `p`. `tau` of the masks are in use at a time: the batch is divided into
    `tau` slices, whose sizes differ by at most 1, and slice $j$ is multiplied by mask $m_j$:

    $$y_i = x_i \odot \frac{m_{\lfloor i \tau / B \rfloor}}{1 - p}$$

    After `round(iters_per_epoch * max_epoch / sigma * tau)` training steps, at least 1, the next
    `tau` masks of a random order are used, so that all masks are used for equally many steps by
    the end of training. After the last mask, a new order starts. In evaluation nothing is dropped.

    Masks and orders are not stored: they are functions of the buffer `seed`, drawn once per layer.
    The buffer `steps` counts the calls in training; each microbatch counts. Both are in the state
    dict, so a resumed run uses the same masks.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        p: Probability that an entry of a mask is 0, in [0, 1). It replaces `p` of the layers.
        sigma: Number of masks.
        tau: Number of masks in use at a time, at most `sigma`.
        iters_per_epoch: Number of training steps in an epoch.
        max_epoch: Number of epochs of training.
        generator: Random number generator of the seeds. Default: torch's global generator.

    Returns:
        The new model; `model` itself if there is nothing to replace.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range, or the model is wrapped for distributed training.

    Warns:
        NoEffectWarning: Nothing was replaced, or a replacement may be bypassed.

    Example:
        >>> draw = torch.Generator().manual_seed(0)
        >>> layer = gyro_dropout(
        ...     nn.Dropout(), sigma=8, tau=2, iters_per_epoch=10, max_epoch=3, generator=draw
        ... )
        >>> outputs = layer(torch.ones(6, 5))
        >>> bool((outputs[0] == outputs[2]).all() and (outputs[3] == outputs[5]).all())
        True
    """
    check_masks(p, sigma, tau)
    stay = max(1, round(iters_per_epoch * max_epoch * tau / sigma))
    device = next((p.device for p in model.parameters()), torch.device("cpu"))

    def rule(name: str, module: nn.Module) -> nn.Module:
        if not keeps_forward_of(nn.Dropout, module):
            return module
        new: GyroDropoutLayer = reclass(module, GyroDropoutLayer, prefix="Gyro")
        new._start(p, sigma, tau, stay, generator)
        return new.to(device)

    done, name = GyroDropoutLayer, "gyro_dropout"
    return replace_or_report(model, rule, done, name, "Dropout", training_only=True)


class GyroDropoutLayer(nn.Dropout):
    """A `Dropout` that reuses its masks; see `gyro_dropout`.

    Args:
        p: Probability that an entry of a mask is 0, in [0, 1).
        sigma: Number of masks.
        tau: Number of masks in use at a time, at most `sigma`.
        stay: Number of training steps for which a mask is in use.
        generator: Random number generator of the seed. Default: torch's global generator.

    Example:
        >>> layer = GyroDropoutLayer(0.5, sigma=4, tau=1, stay=2)
        >>> x = torch.ones(3, 100)
        >>> first, second, third = layer(x), layer(x), layer(x)
        >>> torch.equal(first, second), torch.equal(second, third)
        (True, False)
    """

    seed: Tensor
    steps: Tensor

    def __init__(
        self,
        p: float = 0.5,
        *,
        sigma: int = 256,
        tau: int = 16,
        stay: int,
        generator: torch.Generator | None = None,
    ) -> None:
        check_masks(p, sigma, tau)
        super().__init__(p)
        check_count("stay", stay, 1)
        check_generator("generator", generator)
        self._start(p, sigma, tau, stay, generator)

    def _start(self, p: float, sigma: int, tau: int, stay: int, generator: Any) -> None:
        self.p, self.sigma, self.tau, self.stay = p, sigma, tau, stay
        seed = torch.randint(_MASK, (), generator=generator, device=generator_device(generator))
        self.register_buffer("seed", seed)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device=seed.device))

    def forward(self, inputs: Shaped[Tensor, " *shape"]) -> Shaped[Tensor, " *shape"]:
        """Multiply the inputs by the masks in use."""
        if not self.training or self.p == 0:
            return inputs
        batch, *features = inputs.shape or (1,)
        steps = refuse_recomputation(self.steps, "GyroDropout")
        masks = self._masks(prod(features), steps)
        slices = torch.arange(batch, device=inputs.device) * self.tau // max(1, batch)
        # A product, as in torch's dropout: on a CPU torch.where takes far longer.
        factors = (masks / (1 - self.p)).to(inputs.dtype).index_select(0, slices)
        self.steps.add_(1)
        # The memory format of the factors determines the result's.
        return inputs * laid_out_like(factors.view(inputs.shape), inputs)

    def _masks(self, features: int, steps: Tensor) -> Tensor:
        """Return the masks in use, `[tau, features]`: True for entries to keep."""
        first = steps // self.stay * self.tau
        places = first + torch.arange(self.tau, device=self.seed.device)
        order = self._order(places // self.sigma)
        ids = order.gather(1, rearrange(places % self.sigma, "tau -> tau 1"))
        entries = torch.arange(features, device=self.seed.device)
        drawn = _hash(entries, _hash(ids, _hash(torch.ones_like(ids), self.seed)))
        return drawn >= round(self.p * (_MASK + 1))

    def _order(self, rounds: Tensor) -> Tensor:
        """Return the order of the masks in each round, `[rounds, sigma]`."""
        ids = torch.arange(self.sigma, device=self.seed.device)
        keys = _hash(2 + rearrange(rounds, "rounds -> rounds 1"), self.seed)
        return _hash(ids, keys).argsort(dim=1, stable=True)

    def extra_repr(self) -> str:
        return f"p={self.p}, sigma={self.sigma}, tau={self.tau}, stay={self.stay}"


def _hash(
    number: Int64[Tensor, " *some"], key: Int64[Tensor, " *others"]
) -> Int64[Tensor, " *both"]:
    """Hash numbers with keys to 32 pseudo-random bits, the same on every device.

    The function is "lowbias32" by Chris Wellons (https://nullprogram.com/blog/2018/07/31/).
    """
    mixed = (number * 0x9E3779B9 + key) & _MASK
    for shift, factor in ((16, 0x21F0AAAD), (15, 0xD35A2D97)):
        mixed = ((mixed ^ (mixed >> shift)) * factor) & _MASK
    return mixed ^ (mixed >> 15)


def check_masks(p: float, sigma: int, tau: int) -> None:
    """Raise an error unless the arguments describe a pool of masks."""
    check_range("p", p, 0, 1, ends="[)")
    check_count("sigma", sigma, 1)
    check_count("tau", tau, 1)
    check_order("tau", tau, "sigma", sigma)
