"""Low-rank pairs of layers, fitted to the weight of one layer."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from einops import rearrange
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from composable._support.devices import compute_dtype
from composable._support.sampling import draw_weights

Layer = TypeVar("Layer", bound=nn.Module)
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
LINEARS = (nn.Linear, NonDynamicallyQuantizableLinear)
Decomposition = Callable[[Tensor, int], tuple[Tensor, Tensor, Tensor]]
_OVERSAMPLING, _POWER_ITERATIONS = 10, 2
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


class FactorizedLayer(nn.Module):
    """A low-rank pair of layers that replaces one layer; see `factorize`.

    Args:
        reduce: A linear layer or a convolution with few outputs, without a bias.
        expand: A linear layer, or a convolution with a kernel of size 1 and the same groups.

    Example:
        >>> layer = FactorizedLayer(nn.Linear(64, 4, bias=False), nn.Linear(4, 32))
        >>> x = torch.rand(2, 64)
        >>> torch.allclose(layer(x), x @ layer.weight.T + layer.bias, atol=1e-5)
        True
    """

    def __init__(self, reduce: nn.Module, expand: nn.Module) -> None:
        super().__init__()
        self.reduce, self.expand = reduce, expand

    def forward(self, inputs: Shaped[Tensor, " *inputs"]) -> Shaped[Tensor, " *outputs"]:
        """Apply both layers."""
        outputs: Tensor = self.expand(self.reduce(inputs))
        return outputs

    @property
    def weight(self) -> Float[Tensor, " *weight"]:
        """The weight of one layer that computes the same: the product of the two weights."""
        first: Any = self.reduce.weight
        second: Any = self.expand.weight
        groups = groups_of(self.reduce)
        product = matrices_of(second, groups) @ matrices_of(first, groups)
        return product.reshape(-1, *first.shape[1:])

    @property
    def bias(self) -> Tensor | None:
        """The bias of the second layer."""
        bias: Tensor | None = self.expand.bias  # type: ignore[assignment]
        return bias


def groups_of(module: Any) -> int:
    """Return the number of groups of a convolution, or 1."""
    return getattr(module, "groups", 1)


def matrices_of(weight: Tensor, groups: int) -> Float[Tensor, "groups outputs inputs"]:
    """Reshape a weight to one matrix for each group."""
    return rearrange(weight, "(groups outputs) ... -> groups outputs (...)", groups=groups)


def build_pair(
    module: Any, rank: int, init: str = "svd", generator: torch.Generator | None = None
) -> FactorizedLayer:
    """Build a pair of layers of a rank for a linear layer or a convolution."""
    weight, groups = module.weight, groups_of(module)
    pair = _like(module, rank * groups), _expanding(module, rank * groups)
    memory_format = _memory_format(weight)
    if init == "random":
        fitted = tuple(draw_weights(layer.weight.shape, generator=generator) for layer in pair)
    else:
        decompose = _svd if init == "svd" else _randomized_svd
        fitted = _fit(matrices_of(weight.detach(), groups), rank, decompose)
    for layer, matrices in zip(pair, fitted, strict=True):
        values = matrices.reshape(layer.weight.shape).to(weight.device, weight.dtype)
        values = values.contiguous(memory_format=memory_format)
        layer.weight = nn.Parameter(values, requires_grad=weight.requires_grad)
        layer.train(module.training)
    reduce, expand = pair
    expand.bias = module.bias
    return _with_options_of(module, FactorizedLayer(reduce, expand))


def merge_pair(pair: FactorizedLayer) -> nn.Module:
    """Build the one layer that computes the same as a pair."""
    reduce: Any = pair.reduce
    expand: Any = pair.expand
    new: Any = _like(reduce, len(expand.weight))
    memory_format = _memory_format(reduce.weight)
    weight = pair.weight.detach().contiguous(memory_format=memory_format)
    trained = any(layer.weight.requires_grad for layer in (reduce, expand))
    new.weight, new.bias = nn.Parameter(weight, requires_grad=trained), expand.bias
    merged: nn.Module = _with_options_of(pair, new)
    return merged


def _with_options_of(old: nn.Module, new: Layer) -> Layer:
    """Give a layer the mode, the hooks and the options of another one."""
    tensors = ("_parameters", "_buffers", "_modules")
    new.__dict__.update({key: value for key, value in vars(old).items() if key not in tensors})
    return new


def _memory_format(weight: Tensor) -> torch.memory_format:
    channels_last = FORMATS.get(weight.ndim, torch.contiguous_format)
    plain = weight.is_contiguous() or not weight.is_contiguous(memory_format=channels_last)
    return torch.contiguous_format if plain else channels_last


# On the meta device nothing is initialized: the weights come from the fit.
_BARE: dict[str, Any] = {"bias": False, "device": "meta"}


def _like(old: Any, outputs: int) -> Any:
    """Build a layer with other outputs, and without a bias."""
    if isinstance(old, LINEARS):
        return nn.Linear(old.in_features, outputs, **_BARE)
    names = ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
    options = {name: getattr(old, name) for name in names}
    return type(old)(old.in_channels, outputs, **options, **_BARE)


def _expanding(old: Any, latent: int) -> Any:
    """Build the second layer of a pair, with the outputs of the old one."""
    if isinstance(old, LINEARS):
        return nn.Linear(latent, old.out_features, **_BARE)
    return type(old)(latent, old.out_channels, 1, groups=old.groups, **_BARE)


def _fit(
    matrices: Float[Tensor, "groups outputs inputs"], rank: int, decompose: Decomposition
) -> tuple[Float[Tensor, "groups {rank} inputs"], Float[Tensor, "groups outputs {rank}"]]:
    u, s, v = decompose(matrices.to("cpu", compute_dtype(matrices.dtype)), rank)
    # Singular vectors are unique up to the sign of a pair: make the largest entry of u positive.
    sign = u.gather(1, u.abs().argmax(1, keepdim=True)).sign()
    # The second layer gets the singular values. If both shared them, a weight of zeros, as in many
    # residual branches, would give two weights of zeros, whose gradients are 0.
    return (v * sign).mT, u * sign * rearrange(s, "groups rank -> groups 1 rank")


def _svd(matrices: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest singular values, with their left and right vectors as columns."""
    u, s, vh = torch.linalg.svd(matrices, full_matrices=False)
    return u[..., :rank], s[..., :rank], vh.mT[..., :rank]


def _randomized_svd(matrices: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return nearly the same from the range of the matrix on random vectors, of a fixed seed.

    Halko, Martinsson and Tropp, "Finding Structure with Randomness", SIAM Review 2011, algorithms
    4.4 and 5.1, https://arxiv.org/abs/0909.4061
    """
    groups, outputs, inputs = matrices.shape
    size = rank + _OVERSAMPLING
    if size >= min(outputs, inputs):
        return _svd(matrices, rank)
    seeded = torch.Generator().manual_seed(0)
    vectors = torch.randn(groups, inputs, size, generator=seeded, dtype=matrices.dtype)
    basis = torch.linalg.qr(matrices @ vectors).Q
    for _ in range(_POWER_ITERATIONS):
        basis = torch.linalg.qr(matrices.mT @ basis).Q
        basis = torch.linalg.qr(matrices @ basis).Q
    u, s, v = _svd(basis.mT @ matrices, rank)
    return basis @ u, s, v
