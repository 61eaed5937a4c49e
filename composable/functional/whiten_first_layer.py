"""Whitening of patches by a frozen first convolution.

Page, "How to Train Your ResNet 8: Bag of Tricks", 2019,
https://web.archive.org/web/20231118151801/https://myrtle.ai/learn/how-to-train-your-resnet-8-bag-of-tricks/;
the scaled form: Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", 2024,
https://arxiv.org/abs/2404.00498
"""

from collections.abc import Sequence
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from composable._support.checks import check_range, check_size, check_tensor, checked, within
from composable._support.devices import compute_dtype
from composable._support.spatial import laid_out_like
from composable._support.surgery import check_uncompiled, report_nothing, with_tensors


def whitening_filters(
    inputs: Float[Tensor, "batch channels height width"],
    size: Sequence[int] = (2, 2),
    *,
    eps: float = 5e-4,
) -> Float[Tensor, "components channels rows columns"]:
    r"""Compute filters whose outputs on patches of images are uncorrelated, with equal variance.

    With the eigenvectors $v_k$ and the eigenvalues $\lambda_k$ of the covariance of all patches,
    in the order of falling eigenvalues, filter $k$ is

    $$w_k = \frac{v_k}{\sqrt{\lambda_k + \epsilon}}$$

    The sign of an eigenvector is arbitrary. Here its first entry of at least half the largest
    magnitude is positive, so the same images give the same filters on every machine, up to
    rounding.

    Args:
        inputs: Images of the training set, normalized as in training. A few thousand suffice.
        size: The height and the width of a patch.
        eps: The term $\epsilon$ added to the eigenvalues, above 0. It bounds the amplification of
            components that have almost no variance, which are mostly noise.

    Returns:
        One filter for each component of a patch: `channels * rows * columns` of them, detached,
        with the dtype and device of `inputs`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `inputs` is not `[batch, channels, height, width]`, smaller than a patch, or
            has fewer than two patches; `size` is not two positive sizes; or `eps` is not above 0.

    Example:
        >>> images = torch.randn(100, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        >>> whitening_filters(images, (2, 2)).shape
        torch.Size([12, 3, 2, 2])
    """
    _check_images(inputs)
    _check_patch(inputs, size)
    check_range("eps", eps, 0, ends="()")
    patches = nn.functional.unfold(inputs.detach().to(compute_dtype(inputs.dtype)), tuple(size))
    components = patches.transpose(0, 1).flatten(1)
    centred = components - components.mean(1, keepdim=True)
    values, vectors = torch.linalg.eigh(centred @ centred.mT / (centred.shape[1] - 1))
    rows = _with_sign(vectors.mT.flip(0))
    scaled = rows / (values.flip(0).clamp(min=0) + eps).sqrt().unsqueeze(-1)
    return laid_out_like(scaled.reshape(-1, inputs.shape[1], *size).to(inputs.dtype), inputs)


@checked(eps=within(0, ends="()"))
def whiten_first_layer(
    model: nn.Module,
    inputs: Float[Tensor, "batch channels height width"],
    *,
    eps: float = 5e-4,
) -> nn.Module:
    r"""Write whitening filters into the first convolution, and freeze them.

    The weight of the first `nn.Conv2d` becomes $(w_1, \dots, w_k, -w_1, \dots, -w_k)$, with the
    filters of `whitening_filters` for patches of its kernel size. A layer with fewer outputs than
    that gets the filters of the largest eigenvalues. The weight requires no gradient; a bias is
    trained as before. All keys of the state dict stay the same.

    Args:
        model: Any module. It is not modified. The result shares its other parameters.
        inputs: Images of the training set, normalized as in training. A few thousand suffice.
        eps: The term added to the eigenvalues, above 0: see `whitening_filters`.

    Returns:
        The new model; `model` itself if it has no `nn.Conv2d`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The first convolution has more outputs than there are filters, groups, other
            input channels than `inputs`, or a weight that is computed or not yet known; or
            `inputs` or `eps` is invalid.

    Warns:
        NoEffectWarning: The model has no `nn.Conv2d`.

    Example:
        >>> images = torch.randn(100, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        >>> model = nn.Sequential(nn.Conv2d(3, 24, 2), nn.ReLU())
        >>> outputs = whiten_first_layer(model, images)[0](images)[:, :12]
        >>> torch.allclose(outputs.transpose(0, 1).flatten(1).cov(), torch.eye(12), atol=0.01)
        True
    """
    _check_images(inputs)
    named = ((name, one) for name, one in model.named_modules() if isinstance(one, nn.Conv2d))
    name, conv = next(named, ("", None))
    if conv is None:
        report_nothing("whiten_first_layer", "Conv2d")
        return model
    check_uncompiled(model, [name])
    _check_convolution(name or "model", conv, inputs)
    filters = whitening_filters(inputs, conv.kernel_size, eps=eps)
    half = min(len(filters), -(-conv.out_channels // 2))
    kept = torch.cat([filters[:half], -filters[: conv.out_channels - half]])
    weight = f"{name}.weight" if name else "weight"
    new = with_tensors(model, {weight: torch.empty_like(conv.weight).copy_(kept)})  # its layout
    new.get_parameter(weight).requires_grad_(False)
    return new


def _with_sign(vectors: Tensor) -> Tensor:
    """Choose the sign of each row: its first entry of half the largest magnitude is positive."""
    sizes = vectors.abs()
    first = (sizes >= sizes.amax(1, keepdim=True) / 2).int().argmax(1, keepdim=True)
    return vectors * vectors.gather(1, first).sign()


# --- checks ---


def _check_images(inputs: Tensor) -> None:
    check_tensor("inputs", inputs)
    if not inputs.is_floating_point():
        raise TypeError(
            f"inputs must have a floating-point dtype, not {inputs.dtype}; normalize them as in "
            "training."
        )
    if inputs.ndim != 4:
        raise ValueError(
            f"inputs must be images [batch, channels, height, width], not {tuple(inputs.shape)}."
        )


def _check_patch(inputs: Tensor, size: Sequence[int]) -> None:
    check_size("size", size)
    if len(size) != 2 or not all(size):
        raise ValueError(f"size={size!r} must be the height and the width of a patch, from 1 on.")
    places = [whole - part + 1 for whole, part in zip(inputs.shape[2:], size, strict=True)]
    if min(places) < 1 or len(inputs) * prod(places) < 2:
        raise ValueError(
            f"inputs of shape {tuple(inputs.shape)} must have two patches of size={tuple(size)} or "
            "more; pass more or larger images."
        )


def _check_convolution(name: str, conv: nn.Conv2d, inputs: Tensor) -> None:
    if "weight" not in conv._parameters or nn.parameter.is_lazy(conv.weight):
        raise ValueError(
            f"the weight of the first convolution, {name}, is computed by a parametrization or not "
            "yet known: whiten the first layer before other surgery, and call a lazy model once."
        )
    if inputs.is_meta and not conv.weight.is_meta:
        raise ValueError("inputs are on the meta device and have no data; pass images.")
    if conv.groups > 1 or max(conv.dilation) > 1:
        raise ValueError(
            f"the first convolution, {name}, has groups={conv.groups} and "
            f"dilation={conv.dilation}, so its filters don't see whole patches; use 1 for both."
        )
    if conv.in_channels != inputs.shape[1]:
        raise ValueError(
            f"inputs must have the {conv.in_channels} channels of the first convolution, {name}, "
            f"not {inputs.shape[1]}."
        )
    most = 2 * conv.in_channels * prod(conv.kernel_size)
    if conv.out_channels > most:
        raise ValueError(
            f"the first convolution, {name}, has {conv.out_channels} output channels, but patches "
            f"of {conv.in_channels} x {' x '.join(map(str, conv.kernel_size))} give at most {most} "
            "filters; use fewer channels or a larger kernel, or put such a layer before it."
        )
