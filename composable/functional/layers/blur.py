"""The blur of anti-aliased networks: a function, and the layers that `blurpool` inserts."""

from typing import Any, ClassVar

import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.nn import functional

from composable._support.checks import check_blendable, check_count, check_one_of

CONVS = (functional.conv1d, functional.conv2d, functional.conv3d)
MODES = ("replicate", "reflect", "circular", "zeros")


def blur(
    inputs: Shaped[Tensor, " *shape"],
    *,
    stride: int | tuple[int, ...] = 1,
    padding_mode: str = "replicate",
) -> Shaped[Tensor, " *smaller"]:
    r"""Blur each channel along its spatial dimensions, and subsample it by `stride`.

    The filter along each dimension is $[1, 2, 1] / 4$.

    Args:
        inputs: Floats, `[batch, channels, length]`, `[..., height, width]` or `[..., depth,
            height, width]`.
        stride: One stride for all dimensions, or one for each; 1 or more.
        padding_mode: "replicate" (which keeps constants constant), "reflect", "circular" or
            "zeros" (which darkens the border).

    Returns:
        `[batch, channels, ...]` with sizes `(size - 1) // stride + 1`.

    Raises:
        TypeError: The inputs are integers.
        ValueError: `inputs` doesn't have 1 to 3 spatial dimensions, or an option does not exist.

    Example:
        >>> blur(torch.tensor([[[0.0, 0.0, 4.0, 0.0, 0.0]]]))
        tensor([[[0., 1., 2., 1., 0.]]])
    """
    check_blendable("inputs", inputs)
    if inputs.is_complex():
        raise TypeError(f"inputs must be real, not {inputs.dtype}; blur its parts one by one.")
    check_one_of("padding_mode", padding_mode, MODES)
    dims = inputs.ndim - 2
    if dims not in (1, 2, 3):
        raise ValueError(
            "inputs must have shape [batch, channels, ...] with 1 to 3 spatial dimensions, not "
            f"{tuple(inputs.shape)}."
        )
    if isinstance(stride, (tuple, list)) and len(stride) != dims:
        raise ValueError(
            f"stride={stride!r} must be one integer, or one for each of the {dims} spatial "
            f"dimensions of inputs, of shape {tuple(inputs.shape)}."
        )
    for step in stride if isinstance(stride, (tuple, list)) else (stride,):
        check_count("stride", step, 1)
    steps = per_dimension(stride, dims)
    kernel = _kernel((3,) * dims, like=inputs)
    return _smooth(inputs, kernel, steps, padding_mode)


class Blurred(nn.Module):
    """The base of the layers below: a blur along the dimensions that are subsampled.

    The filter is a non-persistent buffer, so the state dict is the same as of the plain layer.
    """

    dims: ClassVar[int]
    changed_outputs: ClassVar[bool] = True
    stride: Any
    blur_kernel: Tensor
    blur_stride: tuple[int, ...]
    blur_first: bool

    def set_up_blur(self, *, blur_first: bool, like: Tensor | None = None) -> None:
        """Set the attributes of the blur. `like` has the dtype and device of the filter."""
        self.blur_first = blur_first
        self.blur_stride = per_dimension(self.stride, self.dims)
        sizes = tuple(3 if step > 1 else 1 for step in self.blur_stride)
        if like is not None and like.is_meta:  # only weights get their values later
            like = torch.empty((), dtype=like.dtype, device="cpu")
        self.register_buffer("blur_kernel", _kernel(sizes, like=like), persistent=False)
        if not blur_first:  # the layer runs with stride 1, and the blur after it subsamples
            self.stride = (1,) * self.dims

    def forward(self, inputs: Tensor) -> Tensor:
        circular = getattr(self, "padding_mode", None) == "circular"  # a pool has no such mode
        mode = "circular" if circular else "replicate"
        if self.blur_first:
            return self._plain(_smooth(inputs, self.blur_kernel, (1,) * self.dims, mode))
        outputs = self._extended(self._plain(inputs), inputs)
        return _smooth(outputs, self.blur_kernel, self.blur_stride, mode)

    def _plain(self, inputs: Tensor) -> Tensor:
        """Run the plain layer, which is the next class in the method resolution order."""
        outputs: Tensor = super().forward(inputs)
        return outputs

    def _extended(self, outputs: Tensor, inputs: Tensor) -> Tensor:
        return outputs

    def extra_repr(self) -> str:
        own = f"blur_first={self.blur_first}, blur_stride={self.blur_stride}"
        return f"{super().extra_repr()}, {own}"


class _BlurConv(Blurred):
    weight: Tensor

    def __init__(self, *args: Any, blur_first: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.set_up_blur(blur_first=blur_first, like=self.weight)


class _BlurMaxPool(Blurred):
    padding: Any
    ceil_mode: bool
    return_indices: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.return_indices:
            raise ValueError("return_indices=True must be False; a blurred maximum has no index.")
        self.set_up_blur(blur_first=False)

    def _extended(self, outputs: Tensor, inputs: Tensor) -> Tensor:
        """Repeat the last maximum for windows that `ceil_mode` extends over the border."""
        if not self.ceil_mode:
            return outputs
        paddings = per_dimension(self.padding, self.dims)
        pad: list[int] = []
        for dim in reversed(range(self.dims)):
            size, found = inputs.shape[dim - self.dims], outputs.shape[dim - self.dims]
            step = self.blur_stride[dim]
            last = -(-(found - 1) // step)  # the last window must not start in the padding
            if last * step >= size + paddings[dim]:
                last -= 1
            pad += [0, max(0, last * step + 1 - found)]
        return _pad(outputs, pad, "replicate")


class BlurConv1d(_BlurConv, nn.Conv1d):
    """An anti-aliased `Conv1d`, with its arguments and `blur_first`; see `blurpool`."""

    dims = 1


class BlurConv2d(_BlurConv, nn.Conv2d):
    """An anti-aliased `Conv2d`, with its arguments and `blur_first`; see `blurpool`.

    Example:
        >>> layer = BlurConv2d(3, 8, kernel_size=3, stride=2, padding=1)
        >>> layer(torch.rand(1, 3, 32, 32)).shape
        torch.Size([1, 8, 16, 16])
        >>> list(layer.state_dict())
        ['weight', 'bias']
    """

    dims = 2


class BlurConv3d(_BlurConv, nn.Conv3d):
    """An anti-aliased `Conv3d`, with its arguments and `blur_first`; see `blurpool`."""

    dims = 3


class BlurMaxPool1d(_BlurMaxPool, nn.MaxPool1d):
    """An anti-aliased `MaxPool1d`: a max-pool of stride 1, then a blur that subsamples."""

    dims = 1


class BlurMaxPool2d(_BlurMaxPool, nn.MaxPool2d):
    """An anti-aliased `MaxPool2d`: a max-pool of stride 1, then a blur that subsamples.

    Example:
        >>> pool = BlurMaxPool2d(kernel_size=3, stride=2, padding=1)
        >>> pool(torch.rand(1, 3, 32, 32)).shape
        torch.Size([1, 3, 16, 16])
    """

    dims = 2


class BlurMaxPool3d(_BlurMaxPool, nn.MaxPool3d):
    """An anti-aliased `MaxPool3d`: a max-pool of stride 1, then a blur that subsamples."""

    dims = 3


def per_dimension(value: int | tuple[int, ...], dims: int) -> tuple[int, ...]:
    """Expand one number to one for each dimension."""
    return (value,) * dims if isinstance(value, int) else tuple(value)


def _kernel(sizes: tuple[int, ...], *, like: Tensor | None = None) -> Tensor:
    """Build the filter, `[1, 1, *sizes]`: [1, 2, 1] / 4 for a size of 3, and 1 for a size of 1."""
    dtype, device = (None, None) if like is None else (like.dtype, like.device)
    kernel = torch.ones((1, 1), dtype=dtype, device=device)
    for size in sizes:
        distance = torch.arange(size, dtype=dtype, device=device) - size // 2
        taps = (0.5 if size == 3 else 1.0) / (1 + distance.abs())
        kernel = kernel.unsqueeze(-1) * taps
    return kernel


def _smooth(inputs: Tensor, kernel: Tensor, stride: tuple[int, ...], mode: str) -> Tensor:
    dims = kernel.ndim - 2
    pad = [size // 2 for size in reversed(kernel.shape[2:]) for _ in range(2)]
    padded = _pad(inputs, pad, "constant" if mode == "zeros" else mode)
    channels = inputs.shape[-dims - 1]
    weight = kernel.to(inputs).expand(channels, *kernel.shape[1:])
    return CONVS[dims - 1](padded, weight, stride=stride, groups=channels)


def _pad(inputs: Tensor, pad: list[int], mode: str) -> Tensor:
    compiled = torch.compiler.is_compiling() and inputs.device.type == "cpu"
    return (
        _replicate(inputs, pad)
        if compiled and mode == "replicate"
        else functional.pad(inputs, pad, mode=mode)
    )


def _replicate(inputs: Tensor, pad: list[int]) -> Tensor:
    """Pad by replication, in a way that Inductor compiles.

    Beside a convolution on the CPU, the backward pass of the padding of PyTorch fails in Inductor,
    as of torch 2.13: it expects other strides than the kernel returns.
    """
    for dim, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True), start=1):
        first, last = inputs.narrow(-dim, 0, 1), inputs.narrow(-dim, -1, 1)
        inputs = torch.cat([first] * before + [inputs] + [last] * after, dim=-dim)
    return inputs
