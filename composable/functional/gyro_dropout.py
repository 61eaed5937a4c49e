"""Gyro dropout: train a few preselected sub-networks, each of them for a while.

Lee, Kim, Park and Kim, "Gyro Dropout: Maximizing Ensemble Effect in Neural Network Training",
MLSys 2022
"""

from math import prod
from typing import Any

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor, nn

from ._checks import check_count, check_generator, check_module, check_range
from ._random import home
from ._spatial import laid_out_like
from ._surgery import replace_modules, report_nothing
from ._take_over import keeps_forward_of, take_over

__all__ = ["GyroDropoutLayer", "gyro_dropout"]

_MASK = 0xFFFFFFFF


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
    r"""Replace dropouts by ones that reuse a preselected set of masks.

    Each layer has `sigma` masks over the features (all dimensions but the first), whose entries
    are 0 with probability `p`. At a time `tau` of them are in use: the batch is divided into
    `tau` slices, equal to within one example, and slice $j$ is multiplied by mask $m_j$:

    $$y_i = x_i \odot \frac{m_{\lfloor i \tau / B \rfloor}}{1 - p}$$

    After `round(iters_per_epoch * max_epoch / sigma * tau)` training steps, or 1, the next `tau`
    are taken, from a shuffled order of all, so that by the end of the training every mask was in
    use equally long. After the last mask comes another order. In evaluation nothing is dropped.

    Masks and orders are not stored: they are a function of the buffer `seed`, drawn once for each
    layer. The buffer `steps` counts the calls in training, microbatches one by one. Both are in
    the state dict, so a run that is resumed goes on with the same masks.

    Args:
        model: Any module; it is left as it was. The result shares its parameters.
        p: How likely an entry of a mask is 0, in [0, 1). It replaces the layers' own.
        sigma: How many masks there are.
        tau: How many are in use at a time, `sigma` or fewer.
        iters_per_epoch: Training steps in an epoch.
        max_epoch: Epochs in the training.
        generator: Draws the seeds. Torch's global one where None.

    Returns:
        The new model; `model` itself where there was nothing to replace.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of range, or the model is wrapped for distributed training.

    Warns:
        NoEffectWarning: Nothing was found, or a replacement may be bypassed.

    Example:
        >>> draw = torch.Generator().manual_seed(0)
        >>> layer = gyro_dropout(
        ...     nn.Dropout(), sigma=8, tau=2, iters_per_epoch=10, max_epoch=3, generator=draw
        ... )
        >>> outputs = layer(torch.ones(6, 5))
        >>> bool((outputs[0] == outputs[2]).all() and (outputs[3] == outputs[5]).all())
        True
    """
    check_module("model", model)
    check_count("iters_per_epoch", iters_per_epoch, 1)
    check_count("max_epoch", max_epoch, 1)
    check_generator(generator)
    _check(p, sigma, tau)
    stay = max(1, round(iters_per_epoch * max_epoch * tau / sigma))
    device = next((p.device for p in model.parameters()), torch.device("cpu"))

    def rule(name: str, module: nn.Module) -> nn.Module:
        if not keeps_forward_of(nn.Dropout, module):
            return module
        new: GyroDropoutLayer = take_over(module, GyroDropoutLayer, prefix="Gyro")
        new._start(p, sigma, tau, stay, generator)
        return new.to(device)

    new, count = replace_modules(model, rule)
    if count == 0 and not any(isinstance(module, GyroDropoutLayer) for module in model.modules()):
        report_nothing("gyro_dropout", "Dropout")
    return new


class GyroDropoutLayer(nn.Dropout):
    """A `Dropout` that reuses its masks; see `gyro_dropout`.

    Args:
        p: How likely an entry of a mask is 0, in [0, 1).
        sigma: How many masks there are.
        tau: How many are in use at a time.
        stay: For how many training steps.
        generator: Draws the seed.

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
        super().__init__(p)
        check_count("stay", stay, 1)
        check_generator(generator)
        _check(p, sigma, tau)
        self._start(p, sigma, tau, stay, generator)

    def _start(self, p: float, sigma: int, tau: int, stay: int, generator: Any) -> None:
        self.p, self.sigma, self.tau, self.stay = p, sigma, tau, stay
        seed = torch.randint(_MASK, (), generator=generator, device=home(generator))
        self.register_buffer("seed", seed)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device=seed.device))

    def forward(self, inputs: Shaped[Tensor, " *shape"]) -> Shaped[Tensor, " *shape"]:
        """Drop what the masks in use say."""
        if not self.training or self.p == 0:
            return inputs
        batched = inputs if inputs.ndim else inputs.unsqueeze(0)
        masks = self._masks(prod(batched.shape[1:]))
        batch = batched.shape[0]
        slices = torch.arange(batch, device=inputs.device) * self.tau // max(1, batch)
        # A product, as in torch's dropout: on a CPU torch.where takes far longer.
        factors = (masks / (1 - self.p)).to(inputs.dtype).index_select(0, slices)
        factors = factors.view(batched.shape).view(inputs.shape)
        self.steps.add_(1)
        # As the factors lie in memory, so does the result.
        return inputs * laid_out_like(factors, inputs)

    def _masks(self, features: int) -> Tensor:
        """Give the masks in use, [tau, features]: True where the input is kept."""
        first = self.steps // self.stay * self.tau
        places = first + torch.arange(self.tau, device=self.seed.device)
        ids = self._order(places // self.sigma).gather(1, (places % self.sigma).unsqueeze(1))
        entries = torch.arange(features, device=self.seed.device)
        drawn = _hash(entries, _hash(ids, _hash(torch.ones_like(ids), self.seed)))
        return drawn >= round(self.p * (_MASK + 1))

    def _order(self, rounds: Tensor) -> Tensor:
        """Give the order of the masks in each of some rounds, [rounds, sigma]."""
        ids = torch.arange(self.sigma, device=self.seed.device)
        return _hash(ids, _hash(2 + rounds.unsqueeze(1), self.seed)).argsort(dim=1, stable=True)

    def extra_repr(self) -> str:
        return f"p={self.p}, sigma={self.sigma}, tau={self.tau}, stay={self.stay}"


def _hash(
    number: Int64[Tensor, " *some"], key: Int64[Tensor, " *others"]
) -> Int64[Tensor, " *both"]:
    """Mix numbers into keys: 32 bits that look random, and are the same on every device.

    The rounds are those of Chris Wellons' "lowbias32" (https://nullprogram.com/blog/2018/07/31/).
    """
    mixed = (number * 0x9E3779B9 + key) & _MASK
    for shift, factor in ((16, 0x21F0AAAD), (15, 0xD35A2D97)):
        mixed = ((mixed ^ (mixed >> shift)) * factor) & _MASK
    return mixed ^ (mixed >> 15)


def _check(p: float, sigma: int, tau: int) -> None:
    check_range("p", p, 0, 1, ends="[)")
    check_count("sigma", sigma, 1)
    check_count("tau", tau, 1)
    if tau > sigma:
        raise ValueError(f"tau is {tau}, but must be at most sigma, which is {sigma}.")
