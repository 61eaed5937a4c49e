"""Factorization of one layer, fitted to data: reduced-rank regression.

Izenman, "Reduced-Rank Regression for the Multivariate Linear Model", Journal of Multivariate
Analysis 1975, https://doi.org/10.1016/0047-259X(75)90042-1; of layers, as in Zhang, Zou, He and
Sun, "Accelerating Very Deep Convolutional Networks for Classification and Detection", 2015,
https://arxiv.org/abs/1505.06798
"""

from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from composable._support.checks import check_count, check_tensor, kind_of
from composable._support.devices import compute_dtype
from composable._support.surgery import with_tensors

from .factorize import check_values
from .layers.factorized import (
    CONVS,
    LINEARS,
    FactorizedLayer,
    build_pair,
    groups_of,
    matrices_of,
    merge_pair,
)


def factorize_layer(
    layer: nn.Module,
    inputs: Float[Tensor, " *inputs"],
    targets: Float[Tensor, " *outputs"] | None = None,
    *,
    rank: int,
) -> FactorizedLayer:
    r"""Replace a layer by the low-rank pair whose outputs for given inputs are the nearest.

    `factorize` approximates a weight; this approximates its outputs $Y = X W^\top$, so that rank is
    spent on the directions that occur in the inputs. With the largest right singular vectors $Q_k$
    of $Y$ as columns, the new weight is $Q_k Q_k^\top W$. With targets, $W$ is first replaced by
    the least-squares solution, with the smallest norm if there are several. A layer with a bias
    gets the best bias for its new weight; without one, it gets none.

    The fit runs on the CPU, in float32 (or float64 for float64 weights). The weights and the bias
    of the result are new parameters; for anything else, see `factorize`.

    Args:
        layer: A `Linear`, `Conv1d`, `Conv2d`, `Conv3d` or `FactorizedLayer`. It is not modified.
        inputs: A batch of inputs of the layer.
        targets: The outputs to approximate. Default: the layer's.
        rank: Latent size of the pair, for each group.

    Returns:
        The pair.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A shape or the rank does not match the layer, or a value is not finite.

    Example:
        >>> layer = nn.Linear(8, 6)
        >>> inputs = torch.randn(32, 2) @ torch.randn(2, 8)
        >>> pair = factorize_layer(layer, inputs, rank=2)  # as many directions as the inputs have
        >>> torch.allclose(pair(inputs), layer(inputs), atol=1e-4)
        True
    """
    whole: Any = merge_pair(layer) if isinstance(layer, FactorizedLayer) else layer
    if type(whole) not in (*LINEARS, *CONVS):
        raise TypeError(
            "layer must be a Linear, Conv1d, Conv2d, Conv3d or FactorizedLayer, not "
            f"{kind_of(layer)}; factorize replaces the layers of a model."
        )
    check_values("layer", whole.weight)
    groups = groups_of(whole)
    matrices = matrices_of(whole.weight.detach(), groups)
    check_count("rank", rank, 1)
    if rank > min(matrices.shape[1:]):
        raise ValueError(
            f"rank={rank} must be at most {min(matrices.shape[1:])}, the smaller of the inputs and "
            "outputs of a group of the layer."
        )
    with torch.no_grad():
        outputs = _outputs_of(whole, inputs)
        if targets is not None:
            _check_data("targets", targets, outputs.shape)
        dtype = compute_dtype(matrices.dtype)
        x = _input_rows(whole, inputs, groups).to("cpu", dtype)
        y = _output_rows(whole, outputs if targets is None else targets, groups).to("cpu", dtype)
        w = matrices.to("cpu", dtype) if targets is None else None
        weight, bias = _fit(x, y, w, rank, has_bias=whole.bias is not None)
    tensors = {"weight": weight.reshape(whole.weight.shape)}
    if whole.bias is not None:
        tensors["bias"] = bias.flatten()
    return build_pair(with_tensors(whole, tensors), rank)


def _outputs_of(layer: Any, inputs: Tensor) -> Tensor:
    """Call the layer, and say which shape it takes if it can't be called."""
    _check_data("inputs", inputs)
    try:
        outputs: Tensor = layer.forward(inputs.to(layer.weight))
    except RuntimeError as error:
        raise ValueError(
            f"inputs of shape {tuple(inputs.shape)} must be a batch of inputs of "
            f"layer={layer}: {error}"
        ) from error
    return outputs


def _check_data(name: str, value: Any, shape: tuple[int, ...] | None = None) -> None:
    check_tensor(name, value)
    if shape is not None and value.shape != shape:
        raise ValueError(
            f"{name} has shape {tuple(value.shape)} and must have {tuple(shape)}, the shape of "
            "the layer's outputs."
        )
    if value.is_meta:
        raise ValueError(f"{name} is on the meta device and must have values.")
    if not value.numel() or not value.isfinite().all():
        raise ValueError(f"{name} must have values, and all must be finite, to fit a layer to.")


def _input_rows(layer: Any, inputs: Tensor, groups: int) -> Float[Tensor, "groups rows inputs"]:
    """Return the inputs of each output, as rows: for a convolution, patches."""
    if isinstance(layer, LINEARS):
        return inputs.reshape(1, -1, inputs.shape[-1])
    dims = len(layer.kernel_size)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    patches = pad(_batched(layer, inputs), layer._reversed_padding_repeated_twice, mode)
    for dim, size, stride, step in zip(
        range(2, 2 + dims), layer.kernel_size, layer.stride, layer.dilation, strict=True
    ):
        patches = patches.unfold(dim, (size - 1) * step + 1, stride)[..., ::step]
    patches = patches.movedim(1, 1 + dims)
    return rearrange(
        patches.flatten(0, dims), "rows (groups c) ... -> groups rows (c ...)", groups=groups
    )


def _output_rows(layer: Any, outputs: Tensor, groups: int) -> Float[Tensor, "groups rows outputs"]:
    if isinstance(layer, LINEARS):
        return outputs.reshape(1, -1, outputs.shape[-1])
    pattern = "batch (groups c) ... -> groups (batch ...) c"
    return rearrange(_batched(layer, outputs), pattern, groups=groups)


def _batched(layer: Any, tensor: Tensor) -> Tensor:
    """Add the dimension of the batch, which is optional for a convolution."""
    return tensor if tensor.ndim == 2 + len(layer.kernel_size) else tensor[None]


def _fit(
    x: Float[Tensor, "groups rows inputs"],
    y: Float[Tensor, "groups rows outputs"],
    w: Float[Tensor, "groups outputs inputs"] | None,
    rank: int,
    *,
    has_bias: bool,
) -> tuple[Float[Tensor, "groups outputs inputs"], Float[Tensor, "groups 1 outputs"]]:
    """Return the weight of a rank and the bias that map x to y best, beginning with a weight."""
    mean_x, mean_y = (t.mean(1, keepdim=True) * has_bias for t in (x, y))
    centered = x - mean_x
    if w is None:
        # By singular values: the inputs may lie in a subspace.
        w = torch.linalg.lstsq(centered, y - mean_y, driver="gelsd").solution.mT
    # The right singular vectors of `centered @ w.mT`, from a matrix of fewer rows.
    triangle = torch.linalg.qr(centered, mode="r").R
    kept = torch.linalg.svd(triangle @ w.mT, full_matrices=False).Vh[:, :rank]
    weight = kept.mT @ (kept @ w)
    return weight, mean_y - mean_x @ weight.mT
